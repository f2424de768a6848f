"""The failures of a sign-off, each with the command that shows it again, and grouped so that one kind of failure stands once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvverify.events import CodecCompared, Event, FailureFound, FaultPlanted, RunStarted, Verdict
from kvverify.report.signoff.gather import Run
from kvverify.report.words import plural
from kvverify.verdicts import differs

_SIZES = ("requests", "rounds", "concurrency", "max_tokens", "long_requests", "sessions")  # what a live run is made of
Known = Callable[[Run, Event], str]  # why a policy allows an event, empty where it does not


@dataclass(frozen=True, slots=True)
class Defect:
    """One failure. ``replay`` is the command that shows it again, or why there is none; ``where`` what it was met on.

    ``group`` names the kind of failure: those of one kernel and kind, or of one part of a live run, stand together.
    """

    run: str
    title: str
    headline: str
    details: Sequence[str]
    replay: str
    known: str = ""
    group: str = ""
    where: str = ""
    steady: bool = True  # shown again when it was tried at once


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one kind, and how often it was met (``title``): ``first`` is shown in full, ``others`` in a line each, ``more`` not at all."""

    name: str
    title: str
    first: Defect
    others: Sequence[Defect]
    more: int = 0

    @property
    def every(self) -> list[Defect]:
        """All of them."""
        return [self.first, *self.others]

    @property
    def runs(self) -> str:
        """The runs that met it, empty where the title begins with the only one."""
        names = dict.fromkeys(d.run for d in self.every)
        return "" if all(self.title.startswith(f"{name}:") for name in names) else ", ".join(names)

    @property
    def known(self) -> str:
        """Why a policy allows all of them, empty where one is not allowed."""
        reasons = dict.fromkeys(d.known for d in self.every)
        return "" if "" in reasons else "; ".join(reasons)

    def cut(self, most: int) -> Group:
        """Return the group with no more than ``most`` others."""
        return replace(self, others=self.others[:most], more=max(0, len(self.others) - most))


def defects(runs: Sequence[Run], known: Known) -> list[Defect]:
    """Return every failure of the runs, in the order of the runs."""
    found = []
    for run in runs:
        for failure in run.summary.failures:
            e = failure.event
            again = f", found {failure.times} times" if failure.times > 1 else ""
            details = [line for detail in e.details for line in detail.splitlines()]
            found.append(
                Defect(
                    run.name,
                    f"{e.kernel} on {e.layout}: {e.kind} at step {e.step}{again}",
                    e.headline,
                    details,
                    replay_line(run, e),
                    known(run, e),
                    group=f"{e.kernel}: {e.kind}",
                    where=e.layout,
                    steady=bool(e.fingerprint),
                )
            )
        found += [_survival(run, e, known) for e in run.of(FaultPlanted) if e.outcome == "survived"]
        found += [_difference(run, e, known) for e in run.of(CodecCompared) if differs(e)]
        found += _live(run)
    return found


def grouped(found: Sequence[Defect]) -> list[Group]:
    """Return the kinds of failure, those first that no policy allows and a kernel's together; shown in full is one that was met again when tried."""
    groups: dict[str, list[Defect]] = {}
    for defect in found:
        groups.setdefault(defect.group or defect.title, []).append(defect)
    made = []
    for name, own in groups.items():
        first = min(own, key=lambda d: (bool(d.known), not d.steady))
        made.append(Group(name, _title(name, own), first, [d for d in own if d is not first]))
    kernels = list(dict.fromkeys(name.partition(":")[0] for name in groups))
    return sorted(made, key=lambda group: (bool(group.known), kernels.index(group.name.partition(":")[0])))


def _title(name: str, own: Sequence[Defect]) -> str:
    if len(own) == 1:
        return own[0].title
    places = {d.where for d in own if d.where}
    return f"{name}, {plural(len(own), 'failure')}" + (
        f" on {plural(len(places), 'layout')}" if len(places) > 1 else ""
    )


def replay_line(run: Run, e: FailureFound) -> str:
    """Return the command that replays a failure; where its file is not in the run folder, that it is not."""
    if run.failures.get(e.path) is None:
        return f"no replay: {e.path or 'a failure file'} is not in the run folder"
    return f"kvverify replay {shlex.quote(str(run.path / e.path))}"


def _survival(run: Run, e: FaultPlanted, known: Known) -> Defect:
    name = f"planted fault {e.fault} {e.name} survived"
    live = run.summary.start.options.get("live") if run.summary.start else None
    replay = f"kvverify roundtrip --kernel {shlex.quote(e.kernel)} --plant {e.fault}"
    if live:
        replay = f"kvverify selftest --live {shlex.quote(str(live))}"
    return Defect(
        run.name, f"{name} with {e.kernel}", e.reason or e.headline, [], replay, known(run, e), f"{run.name}: {name}"
    )


def _difference(run: Run, e: CodecCompared, known: Known) -> Defect:
    name = f"{e.library} {e.format}"
    title = f"{name}, head size {e.head_size}, {e.what}"
    details = [e.note] if e.note else []
    return Defect(run.name, title, e.headline, details, "kvverify codecs verify", known(run, e), name)


def _live(run: Run) -> Iterator[Defect]:
    """Yield the failed checks of a live run; what replays them is the same command against the same server."""
    start = run.summary.start
    if run.summary.live is None or start is None:
        return
    again = _again(start)
    for case in run.summary.live.cases:
        if case.verdict is Verdict.FAIL:
            headline, rest = (case.messages[0], case.messages[1:]) if case.messages else ("", [])
            name = f"{run.name}: {case.group}"
            yield Defect(run.name, f"{name}, {case.name}", headline, rest, again, group=name)


def _again(start: RunStarted) -> str:
    """Return the command that makes a run of answers or scores again; it needs the same servers, or the same arms."""
    options, parts = start.options, ["kvverify", *start.command.split()]
    flags: tuple[str, ...] = ("url", *_SIZES)
    if start.command == "accuracy compare":
        parts += [str(path) for path in [options.get("base"), *(options.get("runs") or ())]]
        flags = ("again", "tier", "control", "margin")
    for flag in flags:
        value = options.get(flag)
        for one in value if isinstance(value, list | tuple) else [value]:
            parts += [] if one is None else [f"--{flag.replace('_', '-')}", str(one)]
    return shlex.join([*parts, "--seed", str(start.seed)])
