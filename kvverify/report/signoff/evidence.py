"""The tables behind the answers: coverage, kill table, gates, noise floors, accuracy, and what else the runs hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from kvverify.events import (
    BatchFinished,
    CodecCompared,
    ExcessMeasured,
    FaultPlanted,
    GateEvaluated,
    ReplayCompared,
    Verdict,
)
from kvverify.events_accuracy import ArmIncluded, FlipsMeasured, IdentityDiffered
from kvverify.report.final import fault_cell
from kvverify.report.live import TIERS
from kvverify.report.section import Section
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.losses import POINTS, judge
from kvverify.report.words import duration, plural, printable, size, utc
from kvverify.verdicts import differs
from kvverify.verdicts_compare import Compared
from kvverify.verdicts_live import Proofs

MOST_ROWS = 400
_FEW = 6
_NUMBER = re.compile(r"\d{4,}")
_DIGITS = 16  # of a digest, where the whole of it stands elsewhere


def tables(runs: Sequence[Run]) -> list[Section]:
    """Return all tables that have a row, in the order of the page, none of them cut short."""
    made = [
        run_table(runs),
        format_matrix(runs),
        layout_matrix(runs),
        kill_table(runs),
        gates(runs),
        floors(runs),
        accuracy(runs),
        arms(runs),
        codecs(runs),
        doctor(runs),
    ]
    return [section for section in made if section.rows]


def run_table(runs: Iterable[Run]) -> Section:
    """Return the runs themselves, with the hash of each log."""
    rows = []
    for run in runs:
        start = run.summary.start
        began, seed = (utc(start.at), str(start.seed)) if start else ("unknown", "–")
        rows.append(
            [
                run.name,
                run.command or "unknown",
                str(run.verdict),
                began,
                duration(run.summary.seconds),
                seed,
                f"{run.log_hash[:_DIGITS]}…",
            ]
        )
    head = ["run", "command", "verdict", "began", "took", "seed", "SHA-256 of its events"]
    caption = (
        "What this page is made of. Each verdict is computed anew from the events; whole digests are in manifest.json."
    )
    return Section("Runs", caption, head, rows, frozenset({5}), unbroken=frozenset(range(5)))


def format_matrix(runs: Sequence[Run]) -> Section:
    """Return the sequences of each format and kernel, and the bytes of each kernel."""
    cells: Counter[tuple[str, str]] = Counter()
    compared: Counter[str] = Counter()
    for run in _byte_runs(runs):
        for kernel, formats in run.summary.coverage.items():
            for name, orders in formats.items():
                cells[name, kernel] += sum(c.sequences for c in orders.values())
        for e in run.of(BatchFinished):
            compared[e.kernel] += e.compared_bytes
    kernels = list(dict.fromkeys(kernel for _, kernel in cells))
    failed = {
        (name, c.kernel) for run in runs for c in run.summary.cases for name in c.formats if c.verdict is Verdict.FAIL
    }

    def cell(name: str, kernel: str) -> str:
        mark = "FAIL " if (name, kernel) in failed else ""
        return f"{mark}{cells[name, kernel]:,}" if (name, kernel) in cells else "–"

    rows = [[name, *(cell(name, kernel) for kernel in kernels)] for name in dict.fromkeys(name for name, _ in cells)]
    if rows:
        rows.append(["bytes compared, all formats", *(size(compared[kernel]) for kernel in kernels)])
    caption = (
        "Sequences by KV format and kernel, – where it met none. A layout with several formats counts in the row of each; "
        "FAIL: a sequence on a layout with this format failed."
    )
    return Section("Formats by kernel", caption, ["format", *kernels], rows, frozenset(range(1, len(kernels) + 1)))


def layout_matrix(runs: Sequence[Run]) -> Section:
    """Return each layout with its formats and what every kernel made of it."""
    cells: dict[tuple[str, str], tuple[Verdict | None, int]] = {}
    formats: dict[str, set[str]] = {}
    for run in _byte_runs(runs):
        for case in run.summary.cases:
            formats.setdefault(case.layout, set()).update(case.formats)
            old, count = cells.get((case.layout, case.kernel), (None, 0))
            verdict = Verdict.FAIL if Verdict.FAIL in (old, case.verdict) else case.verdict or old
            cells[case.layout, case.kernel] = verdict, count + case.sequences
    refused = {(name, k): "refused" for run in runs for k, row in run.summary.refused.items() for name in row}
    kernels = list(dict.fromkeys(kernel for _, kernel in cells))

    def cell(layout: str, kernel: str) -> str:
        verdict, sequences = cells.get((layout, kernel), (None, 0))
        if verdict is None:
            return refused.get((layout, kernel), "–")
        return f"{sequences:,}" if verdict is Verdict.PASS else f"{verdict} {sequences:,}"

    met = sorted(formats, key=lambda layout: not any(cells.get((layout, k), (None, 0))[0] for k in kernels))
    rows = [[layout, ", ".join(sorted(formats[layout])), *(cell(layout, k) for k in kernels)] for layout in met]
    caption = "Sequences of every kernel on every layout, all right where no verdict stands before them; – where it met none. "
    caption += "Layouts that no kernel met come last."
    numbers = frozenset(range(2, len(kernels) + 2))
    return Section("Layouts by kernel", caption, ["layout", "formats", *kernels], rows, numbers)


def _byte_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the campaigns; what a self-test compares beside its planted faults is a control and no coverage."""
    return [run for run in runs if run.command == "roundtrip"]


def kill_table(runs: Sequence[Run]) -> Section:
    """Return the planted faults of all self-tests, with the environment they ran in."""
    places = list(dict.fromkeys((run.name, e.kernel) for run in runs for e in run.of(FaultPlanted)))
    found = {
        (run.name, e.kernel, e.fault, e.name): e
        for run in runs
        for row in run.summary.faults.values()
        for e in row.values()
    }
    faults = sorted({(fault, name) for _, _, fault, name in found})
    rows = []
    for fault, name in faults:
        met = [found.get((*place, fault, name)) for place in places]
        cells = [_fault_cell(e) if e else "not tried" for e in met]
        rows.append([f"{fault} {name}", *cells])
    one = len({run for run, _ in places}) == 1
    columns = [kernel if one else f"{run}: {kernel}" for run, kernel in places]
    return Section("Planted faults", _outcomes(rows), ["fault", *columns], rows)


def _fault_cell(e: FaultPlanted) -> str:
    """Return whether a fault was found, and by what; how long that took stands in the report of the run."""
    if e.outcome == "killed" and e.by:
        return printable(f"killed by {e.by}")
    return fault_cell(e.outcome, e.by, e.reason, e.examples, e.seconds)


def _outcomes(rows: Sequence[Sequence[str]]) -> str:
    killed = sum(any(cell.startswith("killed") for cell in row) for row in rows)
    survived = sum(cell.startswith("survived") for row in rows for cell in row)
    return (
        f"Whether the check finds each planted fault, and by what. {killed:,} of {len(rows):,} are killed with some kernel, "
        f"{plural(survived, 'survival')}."
    )


def gates(runs: Iterable[Run]) -> Section:
    """Return, for each arm of each live run, whether its tier is proved."""
    rows = []
    for run in runs:
        by_request = Proofs.of(run.events).by_request.values()
        for arm in dict.fromkeys(e.arm for e in by_request):
            own = [e for e in by_request if e.arm == arm]
            missing = list(dict.fromkeys(reason for e in own for reason in e.reasons))
            hits = [counted(own, f"{tier}_hit_tokens") for tier in TIERS]
            witnesses = next((e.witnesses for e in own if e.witnesses), [])
            proved = f"{sum(e.satisfied for e in own)} of {len(own)}"
            words = "; ".join(missing[:_FEW]) or "–"
            rows.append(
                [
                    run.name,
                    arm,
                    proved,
                    *("–" if n is None else f"{n:,}" for n in hits),
                    _NUMBER.sub(lambda n: f"{int(n[0]):,}", ", ".join(witnesses)) or "–",
                    words,
                ]
            )
    head = ["run", "arm", "proved", "hbm hits", "dram hits", "disk hits", "evidence beside hits", "missing"]
    caption = (
        "Whether requests came from the tier of their arm. Hits in tokens as the server counts them, – where it does not; other "
        "evidence is that of the arm's first request."
    )
    return Section("Proof of the tier", caption, head, rows, frozenset(range(3, 6)), unbroken=frozenset(range(3)))


def counted(gates: Iterable[GateEvaluated], name: str) -> int | None:
    """Return the sum of one counter over gates, None where no gate has it."""
    known = [n for e in gates if isinstance(n := e.counted.get(name), int)]
    return sum(known) if known else None


def floors(runs: Iterable[Run]) -> Section:
    """Return what the engine differs from itself by, beside what tiers and formats differ by."""
    rows = []
    for run in runs:
        last = {(e.base, e.arm, e.what, e.round, e.request): e for e in run.of(ReplayCompared)}
        for base, arm, what in dict.fromkeys((e.base, e.arm, e.what) for e in last.values()):
            own = [e for e in last.values() if (e.base, e.arm, e.what) == (base, arm, what) and not e.refused]
            largest = max((e.largest_difference for e in own), default=0.0)
            kind = "judged" if any(e.judged for e in own) else "floor" if arm.startswith(base) else "shown"
            figure = f"{largest:.3g}" if what == "answers" else "–"
            rows.append(
                [run.name, arm, base, what, kind, f"{sum(e.different for e in own)} of {len(own)}", figure, "–"]
            )
        for x in {(e.base, e.arm, e.statistic): e for e in run.of(ExcessMeasured)}.values():
            interval = f"{x.low:.3g} to {x.high:.3g} at {x.confidence:.1%}"
            rows.append(
                [run.name, x.arm, x.base, x.statistic, "excess", f"{x.requests} requests", f"{x.excess:.3g}", interval]
            )
        for f in run.of(FlipsMeasured):
            interval = f"{f.low:.2%} to {f.high:.2%} at {f.confidence:.0%}"
            rows.append(
                [
                    run.name,
                    f.arm,
                    f.base,
                    f"flips, floor {f.floor:.2%}",
                    "excess",
                    f"{f.pairs} pairs",
                    f"{f.excess:.2%}",
                    interval,
                ]
            )
    head = ["run", "arm", "against", "what", "kind", "differ", "largest difference, or excess", "interval"]
    caption = "An arm against the same arm again is the noise floor; what is judged counts only beyond it. Differences are of logprobs."
    return Section("Noise floors and excess", caption, head, rows)


def accuracy(runs: Sequence[Run]) -> Section:
    """Return every measured difference with its interval, primary claims first."""
    rows = []
    every = [(run, e) for run in runs for e in Compared.of(run.events).measured]
    for run, e in sorted(every, key=lambda item: (not item[1].primary, item[1].effect, item[1].scope)):
        verdict = str(judge(run, e, POINTS * e.margin).verdict) if e.primary else "not judged"
        counts = (e.base_only, e.arm_only)
        rows.append(
            [
                *("yes" if e.primary else "no", e.effect, f"{e.arm} against {e.base}", e.scope),
                *(f"{e.pairs:,}", f"{e.missing:,}", f"{POINTS * e.base_score:.2f}", f"{POINTS * e.arm_score:.2f}"),
                e.undefined or f"{POINTS * e.difference:+.2f}",
                "–"
                if e.undefined
                else f"{POINTS * e.low:+.2f} to {POINTS * e.high:+.2f} at {e.confidence:.0%} ({e.method})",
                *("–" if n < 0 else f"{n:,}" for n in counts),
                f"{POINTS * e.margin:g}",
                "–" if e.undefined else f"{e.power_reached:.0%}",
                f"{e.needed:,}" if e.needed >= 0 else "not known",
                verdict,
            ]
        )
    head = ["primary", "effect", "arms", "scope", "pairs", "missing", "base", "arm", "difference", "interval"]
    head += ["base alone right", "arm alone right", "margin", "power", "pairs needed", "verdict"]
    caption = (
        "Paired differences, arm - base, in points. The interval of the primary claim decides; all else is secondary."
    )
    return Section("Accuracy", caption, head, rows, frozenset((4, 5, 6, 7, 8, 10, 11, 12, 13, 14)))


def arms(runs: Iterable[Run]) -> Section:
    """Return the arms that comparisons took in, and in what they differ."""
    rows = []
    for run in runs:
        apart = run.of(IdentityDiffered)
        for e in run.of(ArmIncluded):
            own = [d for d in apart if d.arm == e.label]
            words = [
                f"{d.variable}: {d.base_value} → {d.arm_value}{'' if d.declared else ' (not declared)'}" for d in own
            ]
            times = [duration(t) if t > 0 else "–" for t in (e.ttft, e.itl)]
            counts = [f"{n:,}" for n in (e.samples, e.missing, e.format_errors)]
            read = e.cache_read or "not stated"
            rows.append([run.name, e.label, e.role, *counts, *times, read, "; ".join(words) or "–"])
    head = [
        "run",
        "arm",
        "role",
        "samples",
        "missing",
        "format errors",
        "TTFT",
        "ITL",
        "read in the stored format",
        "differs in",
    ]
    return Section("Arms of accuracy", "Medians of the times.", head, rows, frozenset(range(3, 8)))


def codecs(runs: Iterable[Run]) -> Section:
    """Return what real software makes of each format, held against the reference codecs."""
    groups: dict[tuple[str, str, str], list[CodecCompared]] = {}
    for run in runs:
        for e in run.of(CodecCompared):
            groups.setdefault((run.name, e.library, e.format), []).append(e)
    rows = [
        [
            *(
                name,
                library,
                fmt,
                f"{sum(e.compared_bytes for e in own):,}",
                f"{sum(e.different_bytes for e in own):,}",
            ),
            f"{sum(e.near_midpoint for e in own):,}",
            "; ".join(dict.fromkeys(e.headline for e in own if e.headline)) or "–",
            str(Verdict.FAIL if any(differs(e) for e in own) else Verdict.PASS),
        ]
        for (name, library, fmt), own in groups.items()
    ]
    head = ["run", "library", "format", "bytes", "differ", "near midpoint", "first difference", "verdict"]
    caption = (
        "Bytes of real software against the reference. Near midpoint: numbers within float32 error of a decision point."
    )
    return Section("Reference codecs", caption, head, rows, frozenset(range(3, 6)))


def doctor(runs: Iterable[Run]) -> Section:
    """Return what the doctor found in the configuration of the server."""
    found = [
        (run.name, s)
        for run in runs
        if run.summary.live
        for s in run.summary.live.sections
        if s.title == "Configuration"
    ]
    rows = [[name, *row] for name, section in found for row in section.rows]
    head = ["run", "check", "outcome", "found", "what it breaks", "what to set"]
    return Section(
        "Configuration", "Faults of configuration that make a test meaningless or a cache useless.", head, rows
    )


def cut(section: Section) -> Section:
    """Return the section with no more rows than a page holds; its caption says how many are left."""
    left = len(section.rows) - MOST_ROWS
    if left <= 0:
        return section
    caption = f"{section.caption} {left:,} more rows are in signoff.json."
    return Section(section.title, caption, section.head, section.rows[:MOST_ROWS], section.numbers, section.brief)
