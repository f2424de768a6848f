"""From events to tables: pure functions that every report is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    CodecCompared,
    Event,
    FailureFound,
    FaultPlanted,
    KernelProbed,
    RunFinished,
    RunStarted,
    Verdict,
)
from kvverify.reasons import Reason
from kvverify.report.accuracy import accuracy_report
from kvverify.report.executed import kernel_devices
from kvverify.report.gaps import not_covered
from kvverify.report.live import Live, live_report
from kvverify.verdicts import compared_something, differs, kernels_not_run, reasons, verdict_of

E = TypeVar("E", bound=Event)


@dataclass(slots=True)
class Cell:
    """What was compared in one cell of a coverage matrix."""

    sequences: int = 0
    compared_bytes: int = 0

    def add(self, sequences: int, compared_bytes: int) -> None:
        """Count some more."""
        self.sequences += sequences
        self.compared_bytes += compared_bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """One defect: failures of one kernel with one fingerprint, shown by the first of them."""

    event: FailureFound
    times: int


@dataclass(slots=True)
class Case:
    """One kernel on one layout. ``verdict`` is None where a campaign offered the layout and never came to it."""

    kernel: str
    layout: str
    orders: set[str] = field(default_factory=set)
    formats: set[str] = field(default_factory=set)
    sequences: int = 0
    compared_bytes: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    verdict: Verdict | None = None
    failures: list[Failure] = field(default_factory=list)


@dataclass(slots=True)
class KernelRow:
    """One kernel in numbers; ``offered`` counts the layouts its campaign was to meet, ``met`` those it did."""

    kernel: str
    available: bool = True
    reason: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    device: str = ""  # where its sequences ran; empty where none did
    offered: int = 0
    met: int = 0
    refused: int = 0
    batches: int = 0
    sequences: int = 0
    steps: int = 0
    compared_bytes: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    failures: int = 0


# kernel -> row label -> physical order -> cell
Matrix = dict[str, dict[str, dict[str, Cell]]]


@dataclass(frozen=True, slots=True)
class Summary:
    """All tables of one run.

    ``coverage`` has one row for each KV format, so a batch with several formats counts in several rows; ``mixes`` has one row
    for each set of formats that met in one layout, so its cells add up to the total. ``faults`` maps (id, name) of a planted
    fault to its outcome by kernel; ``comparisons`` are those with reference codecs, in order.
    """

    verdict: Verdict
    reasons: list[Reason]
    start: RunStarted | None
    resumes: int
    seconds: float
    kernels: list[KernelRow]
    cases: list[Case]
    coverage: Matrix
    mixes: Matrix
    steps: dict[str, dict[str, int]]
    lengths: dict[int, int]
    refused: dict[str, dict[str, str]]
    failures: list[Failure]
    faults: dict[tuple[str, str], dict[str, FaultPlanted]]
    comparisons: list[CodecCompared]
    not_covered: list[str]
    live: Live | None = None  # of a run against a server, or of an accuracy run or comparison

    @property
    def orders(self) -> list[str]:
        """The physical orders that were met."""
        return sorted({order for rows in self.coverage.values() for cells in rows.values() for order in cells})

    @property
    def gpu(self) -> dict[str, Any]:
        """What the kernels that ran on a GPU said of it; empty where none did."""
        said = (row.provenance.get("gpu") for row in self.kernels)
        return next((dict(facts) for facts in said if isinstance(facts, dict)), {})

    @property
    def sequences(self) -> int:
        """Executed sequences of all kernels."""
        return sum(row.sequences for row in self.kernels)

    @property
    def compared_bytes(self) -> int:
        """Compared bytes of all kernels."""
        return sum(row.compared_bytes for row in self.kernels)


def summarise(events: Iterable[Event]) -> Summary:
    """Return the tables of a run from its events."""
    seen = list(events)
    starts, batches = of_type(seen, RunStarted), of_type(seen, BatchFinished)
    campaigns = _campaigns(seen)
    failures = group_failures(seen)
    cases = _cases(campaigns, batches, failures)
    kernels = _kernel_rows(seen, campaigns, batches, failures)
    coverage, mixes = _matrices(batches)
    faults, why, live = _faults(seen), reasons(seen), live_report(seen) or accuracy_report(seen)
    not_run = kernels_not_run(seen)
    return Summary(
        verdict=verdict_of(seen),
        reasons=why,
        start=starts[0] if starts else None,
        resumes=max(0, len(starts) - 1),
        seconds=_seconds(seen),
        kernels=kernels,
        cases=cases,
        coverage=coverage,
        mixes=mixes,
        steps=_steps(batches),
        lengths=_lengths(batches),
        refused={c.kernel: dict(c.refused) for c in campaigns.values() if c.refused},
        failures=failures,
        faults=faults,
        comparisons=of_type(seen, CodecCompared),
        not_covered=[
            *_not_covered(
                [r for r in why if r.verdict is Verdict.INCONCLUSIVE or r in not_run], campaigns, cases, batches, faults
            ),
            *_libraries_left_out(seen),
            *(live.gaps if live else []),
        ],
        live=live,
    )


def of_type(events: Iterable[Event], kind: type[E]) -> list[E]:
    """Return the events of one type, in order."""
    return [e for e in events if isinstance(e, kind)]


def group_failures(events: Iterable[Event]) -> list[Failure]:
    """Return one failure for each kernel and fingerprint: what a resume or a later batch found again is no new defect."""
    groups: dict[tuple[str, str, str], dict[tuple[str, int], FailureFound]] = {}
    for e in of_type(events, FailureFound):
        key = (e.kernel, e.fingerprint, "" if e.fingerprint else e.path)
        groups.setdefault(key, {}).setdefault((e.layout, e.batch), e)
    return [Failure(next(iter(found.values())), len(found)) for found in groups.values()]


def _campaigns(seen: list[Event]) -> dict[str, CampaignStarted]:
    """Return each kernel's campaign; one that was resumed is the union of its parts."""
    merged: dict[str, CampaignStarted] = {}
    for e in of_type(seen, CampaignStarted):
        old = merged.get(e.kernel, e)
        notes = list(dict.fromkeys([*old.notes, *e.notes]))
        layouts, refused = {**old.layouts, **e.layouts}, {**old.refused, **e.refused}
        merged[e.kernel] = replace(e, layouts=layouts, refused=refused, notes=notes)
    return merged


def _cases(campaigns: dict[str, CampaignStarted], batches: list[BatchFinished], failures: list[Failure]) -> list[Case]:
    cases: dict[tuple[str, str], Case] = {}

    def case(kernel: str, layout: str) -> Case:
        return cases.setdefault((kernel, layout), Case(kernel, layout))

    for campaign in campaigns.values():
        for layout, formats in campaign.layouts.items():
            case(campaign.kernel, layout).formats.update(formats)
    for batch in batches:
        one = case(batch.kernel, batch.layout)
        one.orders.add(batch.order)
        one.formats.update(batch.formats)
        one.sequences += batch.sequences
        one.compared_bytes += batch.compared_bytes
        one.moved_bytes += batch.moved_bytes
        one.seconds += batch.seconds
        if compared_something(batch):
            one.verdict = Verdict.PASS
    for failure in failures:
        one = case(failure.event.kernel, failure.event.layout)
        one.verdict = Verdict.FAIL
        one.failures.append(failure)
    return list(cases.values())


def _kernel_rows(
    seen: list[Event],
    campaigns: dict[str, CampaignStarted],
    batches: list[BatchFinished],
    failures: list[Failure],
) -> list[KernelRow]:
    rows: dict[str, KernelRow] = {}
    for probe in of_type(seen, KernelProbed):
        rows[probe.kernel] = KernelRow(probe.kernel, probe.available, probe.reason, dict(probe.provenance))
    for campaign in campaigns.values():
        row = rows.setdefault(campaign.kernel, KernelRow(campaign.kernel))
        row.offered, row.refused = len(campaign.layouts), len(campaign.refused)
    met: dict[str, set[str]] = {}
    for batch in batches:
        row = rows.setdefault(batch.kernel, KernelRow(batch.kernel))
        row.batches += 1
        row.sequences += batch.sequences
        row.steps += sum(batch.steps.values())
        row.compared_bytes += batch.compared_bytes
        row.moved_bytes += batch.moved_bytes
        row.seconds += batch.seconds
        met.setdefault(batch.kernel, set()).add(batch.layout)
    for failure in failures:
        rows.setdefault(failure.event.kernel, KernelRow(failure.event.kernel)).failures += 1
    for compared in of_type(seen, CodecCompared):
        row = rows.setdefault(compared.library, KernelRow(compared.library))
        row.compared_bytes += compared.compared_bytes
        row.seconds += compared.seconds
        row.failures += differs(compared)
    for kernel, layouts in met.items():
        rows[kernel].met = len(layouts)
    for kernel, device in kernel_devices(seen).items():
        rows[kernel].device = device
    return list(rows.values())


def _matrices(batches: list[BatchFinished]) -> tuple[Matrix, Matrix]:
    coverage: Matrix = {}
    mixes: Matrix = {}
    for batch in batches:
        for name, sequences in batch.formats.items():
            rows = coverage.setdefault(batch.kernel, {}).setdefault(name, {})
            rows.setdefault(batch.order, Cell()).add(sequences, batch.compared_bytes)
        mix = " + ".join(sorted(batch.formats)) or "no format"
        rows = mixes.setdefault(batch.kernel, {}).setdefault(mix, {})
        rows.setdefault(batch.order, Cell()).add(batch.sequences, batch.compared_bytes)
    return coverage, mixes


def _steps(batches: list[BatchFinished]) -> dict[str, dict[str, int]]:
    """Return kind of step -> kernel -> how many were executed."""
    steps: dict[str, Counter[str]] = {}
    for batch in batches:
        for kind, count in batch.steps.items():
            steps.setdefault(kind, Counter())[batch.kernel] += count
    return {kind: dict(counts) for kind, counts in steps.items()}


def _lengths(batches: list[BatchFinished]) -> dict[int, int]:
    """Return number of steps -> how many sequences had it."""
    lengths: Counter[int] = Counter()
    for batch in batches:
        for length, count in batch.lengths.items():
            lengths[int(length) if length.isdecimal() else 0] += count
    return dict(sorted(lengths.items()))


def _faults(seen: list[Event]) -> dict[tuple[str, str], dict[str, FaultPlanted]]:
    """Return the kill table; of several outcomes for one kernel, after a resume, the worst is shown."""
    rank = {"n/a": 0, "declared": 1, "killed": 1}  # anything else is worse
    faults: dict[tuple[str, str], dict[str, FaultPlanted]] = {}
    for e in of_type(seen, FaultPlanted):
        row = faults.setdefault((e.fault, e.name), {})
        if e.kernel not in row or rank.get(e.outcome, 2) >= rank.get(row[e.kernel].outcome, 2):
            row[e.kernel] = e
    return dict(sorted(faults.items()))


def _seconds(seen: list[Event]) -> float:
    """Return the wall time of all attempts; one that was killed counts up to its last event."""
    total, start, last = 0.0, None, 0.0
    for e in seen:
        if isinstance(e, RunStarted):
            total += last - start if start is not None else 0.0
            start = e.at
        last = e.at
        if isinstance(e, RunFinished):
            total, start = total + e.seconds, None
    return max(0.0, total + (last - start if start is not None else 0.0))


def _libraries_left_out(seen: list[Event]) -> list[str]:
    """Return the libraries whose comparisons nobody asked for by name and that did not run."""
    if not of_type(seen, CodecCompared):
        return []
    probes = {e.kernel: e for e in of_type(seen, KernelProbed)}
    return [f"{e.kernel} did not run: {e.reason}" for e in probes.values() if not e.available and not e.requested]


def _not_covered(
    why: list[Reason],
    campaigns: dict[str, CampaignStarted],
    cases: list[Case],
    batches: list[BatchFinished],
    faults: dict[tuple[str, str], dict[str, FaultPlanted]],
) -> list[str]:
    missed: dict[str, list[str]] = {}
    for case in cases:
        if case.verdict is None:
            missed.setdefault(case.kernel, []).append(case.layout)
    met: dict[str, dict[str, dict[str, None]]] = {"format": {}, "order": {}, "kind of step": {}}
    for batch in batches:
        kinds = [kind for kind, count in batch.steps.items() if count]
        for word, names in (("format", list(batch.formats)), ("order", [batch.order]), ("kind of step", kinds)):
            met[word].setdefault(batch.kernel, {}).update(dict.fromkeys(names))
    return not_covered(why, campaigns, missed, met, faults)
