"""The parent's side of a worker process: send a request, get an answer, or learn how the worker died."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.registry import KernelSource
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Program

_START_S = 180.0  # importing vLLM takes 6 s on an idle machine; a busy one gets time
_PROGRESS_BYTES = 8


class Unavailable(EnvironmentProblem):
    """The kernel cannot run here; the message says why."""


class _Died(Exception):
    pass


def log_file(folder: Path | None, source: KernelSource) -> Path | None:
    """Return the file in ``folder`` for what the libraries of ``source`` print; None where there is no folder."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in source.name)
    return folder / f"{safe}.log" if folder else None


class Child:
    """One worker process for one kernel (and, for self-tests, one planted fault).

    Args:
        source: the kernel.
        fault: id of a fault to plant, or empty; the attribute may be changed between requests.
        time_limit: seconds that one program may take.
        log: file for what libraries print; None discards it.
        forking: keep the imported libraries and fork a worker again after a crash; off where a GPU context forbids it.
        group: environment variables that make it one rank of several, as torchrun sets them; empty for a process on its own.
    """

    def __init__(
        self,
        source: KernelSource,
        *,
        fault: str = "",
        time_limit: float = 20.0,
        log: Path | None = None,
        forking: bool = True,
        group: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self.fault = fault
        self.time_limit = time_limit
        self._log = log
        self._group = dict(group or {})
        self._forking = forking and source.device != "cuda" and not self._group
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = -1
        self._worker = 0
        self._unread = b""
        self._under_way: tuple[Program, float] | None = None  # and the time by which it has to be done
        self._progress: mmap.mmap | None = None
        self._step = -1  # of the program under way, as the worker last said; kept when its memory is gone

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Does the process run?"""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and import the kernel; does nothing while one runs.

        Raises:
            Unavailable: the kernel's libraries are missing or refuse to work here.
        """
        if self.alive:
            return
        with tempfile.TemporaryFile() as shared:
            shared.truncate(_PROGRESS_BYTES)
            self._progress = mmap.mmap(shared.fileno(), _PROGRESS_BYTES)
            self._spawn(shared.fileno())
        try:
            self._await("ready", time.monotonic() + _START_S)
        except (_Died, TimeoutError) as error:
            self.close()
            raise Unavailable(f"{self.source.name}: the process died while importing it ({error})") from None

    def _spawn(self, progress: int) -> None:
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        descriptors = (request_read, reply_write, progress)
        command = [
            sys.executable,
            "-m",
            "kvverify.roundtrip.worker",
            *map(str, descriptors),
            self.source.spec,
        ]
        with (self._log or Path(os.devnull)).open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *command,
                    "fork" if self._forking else "plain",
                    self.source.device,
                    "together" if self._group else "alone",
                ],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment({**self.source.environment, **self._group}),
            )
        os.close(request_read)
        os.close(reply_write)
        self._unread = b""

    def describe(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """Ask how the kernel treats a layout; ``reason`` in the answer is None when it takes it."""
        try:
            return self._ask({"do": "describe", "recipe": recipe, "fault": self.fault})
        except (_Died, TimeoutError) as error:
            raise Unavailable(f"{self.source.name}: supports() ended the process: {error}") from None

    def run(self, recipe: dict[str, Any], program: Program, *, explain: bool = False) -> Outcome:
        """Execute ``program``; a death or a hang of the worker becomes an outcome that names the step."""
        self.begin(recipe, program, explain=explain)
        return self.finish()

    def begin(self, recipe: dict[str, Any], program: Program, *, explain: bool = False) -> None:
        """Hand ``program`` to the worker; :meth:`finish` has its outcome. One program at a time."""
        request = {
            "do": "run",
            "recipe": recipe,
            "program": program.to_json(),
            "explain": explain,
            "fault": self.fault,
            "time_limit": self.time_limit,
        }
        self.start()
        self._under_way = program, time.monotonic() + self.time_limit
        self._send(request)

    def finish(self) -> Outcome:
        """Wait for the outcome of the program that :meth:`begin` handed over."""
        if self._under_way is None:
            raise AssertionError("finish() without begin()")
        (program, deadline), self._under_way = self._under_way, None
        try:
            reply = self._await("answer", deadline)
        except _Died as error:
            return self._lost("crashed", program, f"the process was ended by {error}")
        except TimeoutError:
            self._kill()
            return self._lost("hung", program, f"no answer within {self.time_limit:g} s")
        if reply.get("last"):
            self.close()  # the next program gets a process with a working GPU context
        return Outcome(**reply["answer"])

    def release(self) -> None:
        """Let the worker give its arena's memory back; a worker that is gone has none."""
        if self.alive:
            with contextlib.suppress(_Died, TimeoutError):
                self._ask({"do": "release"})

    def close(self) -> None:
        """End the process."""
        for descriptor in (self._requests, self._replies):
            if descriptor >= 0:
                os.close(descriptor)
        self._requests = self._replies = -1
        if self._progress is not None:
            self._step = self._step_under_way()
            self._progress.close()
            self._progress = None
        if self._process is not None:
            if self._worker:
                _kill(self._worker)
            self._process.kill()
            self._process.wait()
            self._process = None
        self._worker = 0

    def _step_under_way(self) -> int:
        if self._progress is None:
            return self._step
        return int.from_bytes(self._progress[:_PROGRESS_BYTES], "little", signed=True)

    def _lost(self, kind: str, program: Program, how: str) -> Outcome:
        step = self._step_under_way()
        steps = [*program.steps]
        what = "preparing" if step < 0 else steps[step].kind if step < len(steps) else "the final check"
        return Outcome(kind, step, f"{how} in {what}", fingerprint=f"{kind}-{what}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.start()
        deadline = time.monotonic() + self.time_limit
        self._send(request)
        answer: dict[str, Any] = self._await("answer", deadline)["answer"]
        return answer

    def _send(self, request: dict[str, Any]) -> None:
        data = json.dumps(request).encode() + b"\n"
        # where the process is gone, its end is met when the answer is read
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._requests, data) :]

    def _await(self, wanted: str, deadline: float) -> dict[str, Any]:
        while True:
            reply = self._next_reply(deadline)
            if "worker" in reply:
                self._worker = int(reply["worker"])
            elif "unavailable" in reply:
                raise Unavailable(" ".join(str(reply["unavailable"]).split()))  # one line, whatever a library says
            elif "died" in reply:
                self._worker = 0
                raise _Died(reply["died"])
            elif "error" in reply:
                raise EnvironmentProblem(f"kernel {self.source.name}: {reply['error']}")
            elif wanted in reply:
                return reply

    def _next_reply(self, deadline: float) -> dict[str, Any]:
        while True:
            line, found, rest = self._unread.partition(b"\n")
            if found:
                self._unread = rest
                try:
                    reply: dict[str, Any] = json.loads(line)
                except ValueError:  # empty, or the torso of a killed worker's reply
                    continue
                return reply
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                raise TimeoutError(f"no answer within {self.time_limit:g} s")
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                code = self._process.wait() if self._process else None
                self.close()
                raise _Died(f"exit code {code}")
            self._unread += chunk

    def _kill(self) -> None:
        """End a worker that hangs; the next request meets a fresh one."""
        if not self._forking or not self._worker:
            self.close()
            return
        _kill(self._worker)
        try:
            self._await("died", time.monotonic() + _START_S)
        except _Died:
            return
        except TimeoutError:
            self.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    # one thread a process: parent and worker take turns, and the campaigns of two kernels may run side by side
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}
