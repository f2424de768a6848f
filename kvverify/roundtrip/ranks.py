"""Several ranks as one child: a process for each, on a GPU of its own, that execute the very same programs.

Every rank has an arena of its own, which holds its slice of the heads, and payloads under keys of its own. So bytes of another
rank's slice are wrong bytes, and a rank that a kernel forgot still holds what was there before.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from kvverify.errors import EnvironmentProblem, UsageError
from kvverify.kernels.registry import KernelSource
from kvverify.roundtrip.child import Child, Unavailable
from kvverify.roundtrip.meeting import STOPPED
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Program

_HOST = "127.0.0.1"
_IMPORT_S = 120.0


class Runner(Protocol):
    """What a campaign needs of the process or processes that execute its programs."""

    def start(self) -> None:
        """Start what does not run."""
        ...

    def describe(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """Ask how the kernel treats a layout."""
        ...

    def run(self, recipe: dict[str, Any], program: Program, *, explain: bool = False) -> Outcome:
        """Execute a program."""
        ...

    def begin(self, recipe: dict[str, Any], program: Program, *, explain: bool = False) -> None:
        """Hand a program over."""
        ...

    def finish(self) -> Outcome:
        """Wait for its outcome."""
        ...

    def release(self) -> None:
        """Give the arena's memory back."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Ranks:
    """A :class:`Child` for each rank, with the interface of one.

    Args:
        source: the kernel.
        ranks: how many.
        fault: id of a fault to plant, or empty.
        time_limit: seconds that one program may take.
        log: file for what libraries print; each rank gets one beside it.
    """

    def __init__(
        self,
        source: KernelSource,
        ranks: int,
        *,
        fault: str = "",
        time_limit: float = 20.0,
        log: Path | None = None,
    ) -> None:
        self.source = source
        self.fault = fault
        self.time_limit = time_limit
        self._ranks = ranks
        self._log = log
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start all ranks unless all of them run: a group that lost one cannot take it back.

        Raises:
            Unavailable: the kernel's libraries are missing or refuse to work here.
        """
        if self._children and all(child.alive for child in self._children):
            return
        self.close()
        port = free_port()
        self._children = [self._child(rank, port) for rank in range(self._ranks)]
        try:
            with ThreadPoolExecutor(self._ranks) as pool:
                list(pool.map(Child.start, self._children))
        except EnvironmentProblem:
            self.close()
            raise

    def _child(self, rank: int, port: int) -> Child:
        log = self._log.with_name(f"{self._log.stem}-rank{rank}{self._log.suffix}") if self._log else None
        return Child(
            self.source,
            fault=self.fault,
            time_limit=self.time_limit,
            log=log,
            group=variables(rank, self._ranks, port),
        )

    def describe(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """Ask every rank how the kernel treats a layout; it is refused where one of them refuses it."""
        self.start()
        answers = [child.describe(recipe) for child in self._children]
        reasons = (
            f"rank {rank}: {answer['reason']}" if rank else answer["reason"]
            for rank, answer in enumerate(answers)
            if answer["reason"] is not None
        )
        return {**answers[0], "reason": next(reasons, None)}

    def run(self, recipe: dict[str, Any], program: Program, *, explain: bool = False) -> Outcome:
        """Execute ``program`` on every rank; see :func:`combined`."""
        self.begin(recipe, program, explain=explain)
        return self.finish()

    def begin(self, recipe: dict[str, Any], program: Program, *, explain: bool = False) -> None:
        """Hand ``program`` to every rank."""
        self.start()
        for child in self._children:
            child.fault, child.time_limit = self.fault, self.time_limit
            child.begin(recipe, program, explain=explain)

    def finish(self) -> Outcome:
        """Wait for all outcomes and return one.

        Raises:
            EnvironmentProblem: a rank cannot go on, and the reason is not the kernel.
        """
        try:
            return combined([child.finish() for child in self._children])
        except EnvironmentProblem:
            self.close()  # the others wait for that rank
            raise

    def release(self) -> None:
        """Let every rank give its arena's memory back."""
        for child in self._children:
            child.release()

    def close(self) -> None:
        """End all processes."""
        for child in self._children:
            child.close()
        self._children = []


def combined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of a program from those of its ranks: bytes are added up, and the first rank that fails decides.

    A rank that ended its process decides before others, which may have failed since it was gone. Ranks that only stopped for the
    sake of another fail on no account of their own.
    """
    decided = dataclasses.replace(
        _decisive(outcomes),
        compared_bytes=sum(o.compared_bytes for o in outcomes),
        moved_bytes=sum(o.moved_bytes for o in outcomes),
    )
    if decided.kind != STOPPED:
        return decided
    text = "the ranks did not come together in time, though none of them hangs or failed"
    return dataclasses.replace(decided, kind="hung", headline=text, fingerprint="hung-meeting")


def _decisive(outcomes: Sequence[Outcome]) -> Outcome:
    own = [(rank, o) for rank, o in enumerate(outcomes) if o.failed and o.kind != STOPPED]
    if not own:
        return next((o for o in outcomes if o.failed), outcomes[0])
    rank, decides = min(own, key=lambda pair: (pair[1].kind != "crashed", pair[0]))
    return dataclasses.replace(
        decides,
        headline=f"rank {rank}: {decides.headline}",
        details=[*decides.details, *(f"rank {r} too: {o.headline}" for r, o in own if r != rank)],
        first={**decides.first, "rank": rank},
    )


def runner(
    source: KernelSource,
    *,
    ranks: int = 1,
    fault: str = "",
    time_limit: float = 20.0,
    log: Path | None = None,
    forking: bool = True,
) -> Child | Ranks:
    """Return what executes programs on ``ranks`` ranks: one child, or one for each."""
    if ranks == 1:
        return Child(source, fault=fault, time_limit=time_limit, log=log, forking=forking)
    return Ranks(source, ranks, fault=fault, time_limit=time_limit, log=log)


def variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the environment of one rank of a single machine, as torchrun sets it."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
        # the machine's own name need not have an address
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as found:
        found.bind((_HOST, 0))
        return int(found.getsockname()[1])


def check_ranks(ranks: int, device: str) -> None:
    """Return where ``device`` has room for ``ranks`` processes: on GPUs each takes one.

    Raises:
        UsageError: torch sees fewer GPUs.
    """
    if ranks == 1 or device == "cpu":
        return
    # in a process of its own, since this one stays without torch
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_S, check=True).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"--ranks {ranks}: torch cannot count the GPUs here: {error}") from error
    count = int(said.split()[-1])
    if ranks > count:
        seen = "no GPU" if count == 0 else "1 GPU" if count == 1 else f"{count} GPUs"
        raise UsageError(
            f"--ranks {ranks}: torch sees {seen} and each rank takes one; check CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, or "
            "try the ranks in host memory with --device cpu"
        )
