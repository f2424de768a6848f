"""The child process: imports the kernel once, then forks workers that execute programs.

Speaks JSON lines over two inherited file descriptors, since libraries print to stdout as they please. When a worker dies the
first process says how and forks the next one, so a crash costs milliseconds and not the seconds of the import.

On a GPU there is no forking, since a context does not survive it: a process whose context is lost says so and ends.

With several ranks each is such a process on a GPU of its own; they execute the same programs and wait for each other in a meeting.

    python -m kvverify.roundtrip.worker REQUEST_FD REPLY_FD PROGRESS_FD KERNEL_SPEC FORK DEVICE RANKS
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import mmap
import os
import resource
import struct
import sys
import traceback
from typing import Any

from kvverify.arena.place import place_named
from kvverify.errors import KvverifyError
from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.device import check_device, gpu_facts
from kvverify.kernels.registry import KernelSource, resolve, supports_reason
from kvverify.layout.document import from_document
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.roundtrip.executor import KernelRaised, Session
from kvverify.roundtrip.meeting import STOPPED, GroupMeeting, Meeting, Stopped, take_gpu
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Program

PROGRESS = struct.Struct("<q")
_NO_MORE = 86  # a worker's exit code when the parent has closed its end; 0 is what a kernel that calls exit() may leave


class Replies:
    """The way back to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **values: Any) -> None:
        """Write one JSON line; the line break in front ends what a killed worker may have left half written."""
        data = b"\n" + json.dumps(values).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


class Worker:
    """Answers the parent's requests with one kernel source; keeps the last session for the next program of its shape."""

    def __init__(self, source: KernelSource, progress: mmap.mmap, meeting: Meeting) -> None:
        self._source = source
        self._meeting = meeting
        self._fault = ""
        self._progress = progress
        self._layouts: dict[str, Layout] = {}
        self._session: tuple[str, Session] | None = None
        self._memory = place_named(source.device, rank=meeting.rank, world_size=meeting.world_size)
        self.lost = False  # the GPU's context is gone, and with it this process
        self._closed: set[str] = set()  # shapes whose kernel was closed once, and memory compared after that

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute one request: ``describe`` (does the kernel take this layout, and how), ``run`` (a program), ``release``."""
        if request["do"] == "release":
            return self._release()
        layout = self._layout(request["recipe"])
        self._fault = request["fault"]
        if request["do"] == "describe":
            return self._describe(layout)
        program = Program.from_json(request["program"])
        return dataclasses.asdict(self._run_together(layout, request, program))

    def _describe(self, layout: Layout) -> dict[str, Any]:
        kernel = self._kernel()
        reason = supports_reason(kernel, layout) or self._too_large(layout)
        return {
            "reason": reason,
            "blocks_per_slot": int(getattr(kernel, "blocks_per_slot", 1)),
            "load_part": callable(getattr(kernel, "load_part", None)),
            "groups": getattr(kernel, "groups", False) is True,
            "partial_slots": getattr(kernel, "partial_slots", False) is True,
            "slow": getattr(kernel, "slow", False) is True,
            "caller_syncs": sorted(getattr(kernel, "caller_syncs", ())),
            "device": self._source.device,
            "ranks": self._meeting.world_size,
            "done": callable(getattr(kernel, "done", None)),
            "owns_host": getattr(kernel, "owns_host", False) is True,
            "provenance": self._provenance(kernel) if reason is None else {},
        }

    def _provenance(self, kernel: CopyKernel) -> dict[str, Any]:
        """What the kernel says of itself and, since the parent imports no torch, what GPU that was on."""
        said = getattr(kernel, "provenance", None)
        known: dict[str, Any] = said() if callable(said) else {}
        return {**known, "gpu": gpu_facts()} if self._source.device == "cuda" else known

    def _run_together(self, layout: Layout, request: dict[str, Any], program: Program) -> Outcome:
        """Execute ``program`` as one of the ranks; where another stops first, that is all the outcome says."""
        self._meeting.begin(request["time_limit"])
        try:
            outcome = self._run(layout, request, program)
            if not outcome.failed:
                self._meeting.finish()
        except Stopped as stopped:
            self._drop_session()  # the kernel's state is not what it is on the other ranks
            outcome = Outcome(STOPPED, -1, str(stopped))
        finally:
            self._meeting.leave()
        self.lost = self._meeting.broken or outcome.kind == "crashed"
        return outcome

    def _run(self, layout: Layout, request: dict[str, Any], program: Program) -> Outcome:
        shape = json.dumps(
            [request["recipe"], program.host_slots, program.blocks_per_slot, self._fault], sort_keys=True
        )
        self._progress[:8] = PROGRESS.pack(-1)
        try:
            if self._session is None or self._session[0] != shape:
                self._end_session()
                kernel = self._kernel()
                reason = supports_reason(kernel, layout)
                if reason is not None:
                    return Outcome("refused", -1, reason)
                session = Session(
                    kernel, layout, program.host_slots, program.blocks_per_slot, self._memory, meet=self._meeting.meet
                )
                self._session = (shape, session)
            outcome = self._session[1].run(program, explain=request["explain"], progress=self._tell)
            if not outcome.failed and shape not in self._closed:
                # once a shape: close() is a call like others, and its effects have to be looked at
                session, self._session = self._session[1], None
                outcome = session.close_checked(outcome)
                if not outcome.failed:
                    self._closed.add(shape)
        except KernelRaised as error:
            self._drop_session()
            return Outcome("raised", -1, str(error), fingerprint=f"raised-{error.name}")
        if outcome.failed and outcome.kind != "crashed":
            self._drop_session()  # a kernel that went wrong may keep wrong state
        return outcome

    def _too_large(self, layout: Layout) -> str | None:
        if self._source.device != "cuda":
            return None
        from kvverify.arena.device_arena import allocation_bytes, free_bytes

        needed, free = allocation_bytes(layout), free_bytes(self._source.device)
        return (
            f"takes {needed / 2**30:.1f} GiB of GPU memory, {free / 2**30:.1f} GiB are free" if needed > free else None
        )

    def _drop_session(self) -> None:
        """Close what is there, so that a library gives back what it holds: memory that it pinned cannot be pinned again."""
        with contextlib.suppress(KernelRaised):  # close() is checked where a sequence ends well
            self._end_session()

    def _release(self) -> dict[str, Any]:
        """Give the arena's memory back, so that another kernel's process can have it."""
        self._drop_session()
        if self._source.device == "cuda":
            import torch

            gc.collect()  # tensors of the arena in reference cycles keep its memory
            torch.cuda.empty_cache()
        return {}

    def _end_session(self) -> None:
        if self._session is not None:
            session, self._session = self._session[1], None
            session.close()

    def _kernel(self) -> CopyKernel:
        kernel = self._source.create()
        if not self._fault:
            return kernel
        from kvverify.faults.catalogue import fault_named

        return fault_named(self._fault).plant(kernel)

    def _layout(self, document: dict[str, Any]) -> Layout:
        text = json.dumps(document, sort_keys=True)
        if text not in self._layouts:
            self._layouts[text] = place(from_document(document, "request"))
        return self._layouts[text]

    def _tell(self, step: int) -> None:
        self._progress[:8] = PROGRESS.pack(step)


def serve(worker: Worker, requests: int, replies: Replies) -> None:
    """Answer until the parent closes its end."""
    replies.send(worker=os.getpid())
    with open(requests, "rb", closefd=False, buffering=0) as source:
        for line in iter(lambda: _line(source.fileno()), b""):
            try:
                answer = worker.answer(json.loads(line))
                replies.send(answer=answer, last=worker.lost)
                if worker.lost:
                    return
            except KvverifyError as error:
                replies.send(error=str(error))
            except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, OSError, MemoryError):
                replies.send(error=traceback.format_exc(limit=-3))


def _line(descriptor: int) -> bytes:
    """Read one line without reading ahead: what follows belongs to the worker that comes next."""
    chunks = []
    while chunk := os.read(descriptor, 1 << 16):
        chunks.append(chunk)
        if chunk.endswith(b"\n"):
            break
    return b"".join(chunks)


def main(arguments: list[str]) -> int:
    """Import the kernel, say so, and keep one worker alive until the parent has no more requests."""
    requests, replies, progress = int(arguments[0]), Replies(int(arguments[1])), mmap.mmap(int(arguments[2]), 8)
    source, forking = resolve(arguments[3], arguments[5]), arguments[4] == "fork"
    together = arguments[6] == "together"
    try:
        import torch

        torch.set_num_threads(1)  # two processes share the machine; fork and thread pools do not go together
        if together and source.device == "cuda":
            take_gpu()
        check_device(source.device)
        source.create()
    except KvverifyError as error:
        replies.send(unavailable=str(error))
        return 0
    except ImportError as error:
        replies.send(unavailable=f"{source.name}: {error}")
        return 0
    except Exception as error:  # noqa: BLE001 - the import of third-party code is the second place where anything may come out
        replies.send(unavailable=f"{source.name}: {type(error).__name__}: {error}")
        return 0
    replies.send(ready=True)
    try:
        meeting = GroupMeeting(source.device) if together else Meeting()
    except RuntimeError as error:
        replies.send(unavailable=f"{source.name}: the ranks do not find each other: {error}")
        return 0
    worker = Worker(source, progress, meeting)
    if not forking:
        serve(worker, requests, replies)
        return 0
    while True:
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected here, dumps of them only cost time
            serve(worker, requests, replies)
            os._exit(_NO_MORE)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _NO_MORE:
            return 0
        replies.send(died=_how(status))


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        import signal

        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.WEXITSTATUS(status)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
