"""What the sign-off does not cover: what a reader could believe to be verified and was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvverify.events import BatchFinished
from kvverify.events_accuracy import SampleAnswered, SampleLeftOut
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.questions import Question
from kvverify.report.signoff.subject import Subject

_GPU_MAKERS = {"AMD": ("gfx", "AMD", "ROCm"), "NVIDIA": ("sm_", "NVIDIA", "CUDA")}
_ROLLOUT = (
    "Bytes, the tier that served, answers across tiers and the cost of a format: the sign-off of the release looks at these, "
    "a rollout does not."
)
ALL_COMMANDS = ("roundtrip", "selftest", "codecs verify", "tier-diff", "isolation", "doctor", "accuracy compare")


@dataclass(frozen=True, slots=True)
class Gaps:
    """``short`` are the lines of the first screen, ``by_run`` what each run says of itself."""

    short: Sequence[str]
    by_run: Sequence[tuple[str, Sequence[str]]]


def gaps(runs: Sequence[Run], asked: Sequence[Question], tested: Subject, *, rollout: bool = False) -> Gaps:
    """Return what was not covered, the widest gaps first."""
    short = [_ROLLOUT, *_samples(runs)] if rollout else _of_release(runs, asked, tested)
    by_run = [(run.name, run.summary.not_covered) for run in runs if run.summary.not_covered]
    if by_run:
        count = sum(len(lines) for _, lines in by_run)
        short.append(f"The runs name {count:,} gaps of their own; all are listed under «Gaps of each run».")
    return Gaps(short, by_run)


def _of_release(runs: Sequence[Run], asked: Sequence[Question], tested: Subject) -> list[str]:
    short = [f"Question {q.number} was not looked at: {q.title}" for q in asked if not q.looked]
    ran = {run.command for run in runs}
    if missing := [command for command in ALL_COMMANDS if command not in ran]:
        short.append(f"Not run: {', '.join(missing)}.")
    short += _servers(tested)
    short += [*_gpus(tested), *(f"{line[:1].upper()}{line[1:]}." for line in tested.conflicts)]
    short += [*_coverage(runs), *_samples(runs)]
    if told := [word for word, values in tested.facts.items() if not values]:
        short.append(f"No run tells: {', '.join(told)}.")
    return short


def _servers(tested: Subject) -> list[str]:
    """Return what was asked of some servers and not of others."""
    asked = dict.fromkeys(command for server in tested.servers for command in server.runs.values())
    left = {
        command: [server.name for server in tested.servers if command not in server.runs.values()]
        for command in asked
        if not command.startswith("accuracy")
    }
    return [f"Not asked of every server: {command} of {'; '.join(names)}." for command, names in left.items() if names]


def _gpus(tested: Subject) -> list[str]:
    devices = [*tested.facts["GPU"], *(kernel.device for kernel in tested.kernels)]
    makers = [
        maker for maker, marks in _GPU_MAKERS.items() if any(mark in device for device in devices for mark in marks)
    ]
    if not makers:
        return ["No copy ran on a GPU."]
    return [f"Nothing ran on a GPU of {maker}." for maker in _GPU_MAKERS if maker not in makers]


def _coverage(runs: Sequence[Run]) -> list[str]:
    """Return, for each kernel of all campaigns together, how many of its layouts it met."""
    offered: dict[str, set[str]] = {}
    refused: dict[str, set[str]] = {}
    met: dict[str, set[str]] = {}
    for run in runs:
        if run.command != "roundtrip":
            continue
        for case in run.summary.cases:
            offered.setdefault(case.kernel, set()).add(case.layout)
        for kernel, row in run.summary.refused.items():
            refused.setdefault(kernel, set()).update(row)
        for e in run.of(BatchFinished):
            met.setdefault(e.kernel, set()).add(e.layout)
    none = {kernel: len(names - offered.get(kernel, set())) for kernel, names in refused.items()}
    words = [
        f"{kernel} {len(layouts & met.get(kernel, set()))} of {len(layouts)}"
        for kernel, layouts in offered.items()
        if layouts - met.get(kernel, set())
    ]
    lines = [f"Layouts that a kernel takes and met: {', '.join(words)}."] if words else []
    words = [f"{kernel} {n}" for kernel, n in none.items() if n]
    return [*lines, f"Layouts that a kernel refuses: {', '.join(words)}."] if words else lines


def _samples(runs: Sequence[Run]) -> list[str]:
    lines = []
    for run in runs:
        failed = len(
            {e.key for e in run.of(SampleAnswered) if e.error} - {e.key for e in run.of(SampleAnswered) if not e.error}
        )
        left = len({e.key for e in run.of(SampleLeftOut)})
        if failed or left:
            lines.append(f"Run {run.name}: {failed:,} samples without an answer, {left:,} not sent at all.")
    return lines
