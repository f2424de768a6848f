"""Run the comparisons of each library in a child process and turn them into events."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kvverify.events import CodecCompared, Event, KernelProbed

LIBRARIES = ("vllm", "lmcache")
HEAD_SIZES = (64, 128, 256)
PROCESS = "process"  # in place of a comparison: the library died or hung in one
CHILD = ["-m", "kvverify.conformance.child"]
SILENCE_S = 300.0  # the longest that one comparison, or importing an engine on a busy machine, may take


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare. ``named`` libraries were asked for: one that does not run makes the run inconclusive.

    ``logs`` is the folder for what the libraries print, None to drop it. ``done`` are the comparisons that an interrupted run has made.
    """

    presets: tuple[str, ...]
    head_sizes: tuple[int, ...] = HEAD_SIZES
    libraries: tuple[str, ...] = LIBRARIES
    named: frozenset[str] = frozenset({"vllm"})
    device: str = "cpu"
    seed: int = 0
    logs: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    done: tuple[CodecCompared, ...] = ()

    @property
    def comparisons(self) -> int:
        """How many comparisons there are when everything runs."""
        sizes, presets = len(self.head_sizes), len(self.presets)
        fp8_keys = 2 * ("turboquant_k8v4" in self.presets)
        per_size = {"vllm": 3 * presets + fp8_keys, "lmcache": 6 + 2 * presets + 1 + 1 + presets}
        return sizes * sum(per_size[library] for library in self.libraries)


def verify(plan: Plan, emit: Callable[[Event], None]) -> None:
    """Compare, library after library, and emit what was found."""
    ended = {
        e.library for e in plan.done if e.what == PROCESS
    }  # died or hung: that is its result, a resume changes nothing
    for library in plan.libraries:
        if library not in ended:
            _one_library(plan, library, emit)


def _one_library(plan: Plan, library: str, emit: Callable[[Event], None]) -> None:
    requested = library in plan.named
    probed = False
    last = "importing"
    for message in _child(plan, library):
        if probe := message.get("probe"):
            probed = True
            emit(KernelProbed(kernel=library, requested=requested, **probe))
        elif check := message.get("check"):
            last = f"the comparison after {check['format']}, head size {check['head_size']}, {check['what']}"
            emit(CodecCompared(**check))
        elif missing := message.get("missing"):
            emit(KernelProbed(kernel=missing["part"], available=False, requested=requested, reason=missing["reason"]))
        elif died := message.get("died"):
            if not probed:
                emit(KernelProbed(kernel=library, available=False, requested=requested, reason=died))
            else:
                emit(_lost(library, plan, f"{died} in {last}"))


def _lost(library: str, plan: Plan, headline: str) -> CodecCompared:
    return CodecCompared(
        library=library,
        format=", ".join(plan.presets),
        head_size=0,
        what=PROCESS,
        compared_bytes=0,
        different_bytes=0,
        headline=headline,
    )


def _child(plan: Plan, library: str) -> Iterator[dict[str, Any]]:
    """Yield the child's messages; one with ``died`` where it ended or hung before it was done."""
    request = {
        "library": library,
        "presets": plan.presets,
        "head_sizes": plan.head_sizes,
        "device": plan.device,
        "seed": plan.seed,
        "done": [(e.format, e.head_size, e.what) for e in plan.done if e.library == library],
    }
    log = plan.logs / f"{library}.log" if plan.logs else Path(os.devnull)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, *CHILD, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(plan),
        )
    assert process.stdout is not None
    try:
        yield from _messages(process, process.stdout, log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _messages(process: subprocess.Popen[bytes], stdout: IO[bytes], log: Path) -> Iterator[dict[str, Any]]:
    for line in _lines(stdout):
        if line is None:
            yield {"died": f"no answer within {SILENCE_S:g} s"}
            return
        message = json.loads(line)
        if message.get("done"):
            return
        yield message
    code = process.wait()
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    yield {"died": f"the process was ended by {how}{_last_words(log)}"}


def _lines(stdout: IO[bytes]) -> Iterator[bytes | None]:
    """Yield whole lines; None when the child was silent for too long."""
    unread, deadline = b"", time.monotonic() + SILENCE_S
    while True:
        if not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            yield None
            return
        chunk = os.read(stdout.fileno(), 1 << 16)
        if not chunk:
            return
        *lines, unread = (unread + chunk).split(b"\n")
        yield from lines
        deadline = time.monotonic() + SILENCE_S


def _last_words(log: Path) -> str:
    text = log.read_text(errors="replace").strip() if log.is_file() else ""
    return f" ({text.splitlines()[-1]})" if text else ""


def _environment(plan: Plan) -> dict[str, str]:
    # Triton chooses its interpreter when it is imported; threads only disturb a busy machine
    quiet = {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", "LMCACHE_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    cpu = {"TRITON_INTERPRET": "1"} if plan.device == "cpu" else {"TRITON_INTERPRET": "0"}
    return {**os.environ, **quiet, **cpu, **plan.environment}
