"""The verdict of a run, computed from its raw events each time. Rules of live checks are in kvverify.verdicts_live."""

from __future__ import annotations

from collections.abc import Iterable

from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    CodecCompared,
    Event,
    FailureFound,
    FaultPlanted,
    KernelProbed,
    ProblemMet,
    RunFinished,
    RunStarted,
    Verdict,
)
from kvverify.reasons import SEVERITY, Reason, worst
from kvverify.verdicts_accuracy import is_accuracy_run, run_reasons
from kvverify.verdicts_compare import compare_reasons, is_compare
from kvverify.verdicts_live import is_live, live_reasons


def verdict_of(events: Iterable[Event]) -> Verdict:
    """Compute the verdict of a run from its raw events: that of the worst of :func:`reasons`, PASS where there is none."""
    return worst([Verdict.PASS, *(reason.verdict for reason in reasons(events))])


def reasons(events: Iterable[Event]) -> list[Reason]:
    """Return everything that keeps a run from being a PASS, worst first; computed anew each time.

    FAIL: a kernel broke a property or differs from a reference codec, or a planted fault survived, which is a FAIL of the
    checker. ERROR: a problem was met.
    INCONCLUSIVE: no sequence compared a byte, a requested kernel did not run, a planted fault was killed nowhere, or the log
    has no end (after the last start, where a run was resumed). Checks of live servers: see kvverify.verdicts_live; accuracy
    arms: kvverify.verdicts_accuracy; their comparisons: kvverify.verdicts_compare.
    """
    seen = list(events)
    found = [*_failures(seen), *_differences(seen), *_problems(seen), *_fault_reasons(seen)]
    found += [*_checks(seen), *end_reasons(seen)]
    return sorted(found, key=lambda reason: -SEVERITY.index(reason.verdict))


def _checks(seen: list[Event]) -> list[Reason]:
    """Return what the rules of the command say that ran."""
    if is_live(seen):
        return live_reasons(seen)
    if is_accuracy_run(seen):
        return run_reasons(seen)
    return compare_reasons(seen) if is_compare(seen) else _kernel_reasons(seen)


def compared_something(batch: BatchFinished) -> bool:
    """Did this batch check anything? Sequences that compared no byte are no evidence."""
    return batch.sequences > 0 and batch.compared_bytes > 0


def _failures(seen: list[Event]) -> list[Reason]:
    places = {(e.kernel, e.layout, e.fingerprint): e for e in seen if isinstance(e, FailureFound)}
    kernels = dict.fromkeys(kernel for kernel, _, _ in places)
    counts = {kernel: sum(k == kernel for k, _, _ in places) for kernel in kernels}
    return [Reason(Verdict.FAIL, f"kernel {k}: {n} failure{'s' if n > 1 else ''}") for k, n in counts.items()]


def differs(event: CodecCompared) -> bool:
    """Is this comparison a failure?"""
    return event.different_bytes > 0 or bool(event.headline)


def _differences(seen: list[Event]) -> list[Reason]:
    wrong = [e for e in seen if isinstance(e, CodecCompared) and differs(e)]
    texts = dict.fromkeys(f"{e.library} {e.format}, head size {e.head_size}, {e.what}: {e.headline}" for e in wrong)
    return [Reason(Verdict.FAIL, text) for text in texts]


def _problems(seen: list[Event]) -> list[Reason]:
    if is_live(seen) or is_accuracy_run(seen):  # a resumed run does again what a dying server cut short
        starts = [i for i, e in enumerate(seen) if isinstance(e, RunStarted)]
        seen = seen[starts[-1] if starts else 0 :]
    told = {(f"kernel {e.kernel}", e.reason) for e in _not_run(seen)}
    texts = dict.fromkeys(
        f"{e.where}: {e.problem}" for e in seen if isinstance(e, ProblemMet) and (e.where, e.problem) not in told
    )
    return [Reason(Verdict.ERROR, text) for text in texts]


def kernels_not_run(events: Iterable[Event]) -> list[Reason]:
    """Return the kernels that were asked for and did not run: INCONCLUSIVE, or ERROR where that was a problem of the run."""
    seen = list(events)
    problems = {(e.where, e.problem) for e in seen if isinstance(e, ProblemMet)}
    return [
        Reason(
            Verdict.ERROR if (f"kernel {e.kernel}", e.reason) in problems else Verdict.INCONCLUSIVE,
            f"kernel {e.kernel} did not run: {e.reason or 'not available'}",
        )
        for e in _not_run(seen)
    ]


def _not_run(seen: list[Event]) -> list[KernelProbed]:
    probes = {e.kernel: e for e in seen if isinstance(e, KernelProbed)}  # after a resume, the last one counts
    return [e for e in probes.values() if not e.available and e.requested]


def _fault_reasons(seen: list[Event]) -> list[Reason]:
    faults: dict[tuple[str, str], list[FaultPlanted]] = {}
    for e in seen:
        if isinstance(e, FaultPlanted):
            faults.setdefault((e.fault, e.name), []).append(e)
    found = []
    for (fault, name), met in faults.items():
        survivors = [e.kernel for e in met if e.outcome == "survived"]
        if survivors:
            kernels = ", ".join(dict.fromkeys(survivors))
            found.append(Reason(Verdict.FAIL, f"planted fault {fault} {name} survived with kernel {kernels}"))
        elif not any(e.outcome in ("killed", "declared") for e in met):
            why = "; ".join(dict.fromkeys(e.reason or e.outcome for e in met))
            found.append(Reason(Verdict.INCONCLUSIVE, f"planted fault {fault} {name} was killed with no kernel: {why}"))
    return found


def _kernel_reasons(seen: list[Event]) -> list[Reason]:
    ran = {e.kernel for e in seen if isinstance(e, BatchFinished) and compared_something(e)}
    ran |= {e.kernel for e in seen if isinstance(e, FailureFound)}  # perhaps in its very first sequence
    codecs = any(isinstance(e, RunStarted) and e.command.startswith("codecs") for e in seen)
    ran |= {e.library for e in seen if isinstance(e, CodecCompared) and (e.compared_bytes > 0 or differs(e))}
    found = kernels_not_run(seen)
    probes = {e.kernel: e for e in seen if isinstance(e, KernelProbed)}
    offered = [e.kernel for e in probes.values() if e.available]
    started = [e.kernel for e in seen if isinstance(e, CampaignStarted) and e.kernel not in probes]
    found += [
        Reason(Verdict.INCONCLUSIVE, f"kernel {kernel} {'compared no byte' if codecs else 'executed no sequence'}")
        for kernel in dict.fromkeys([*offered, *started])
        if kernel not in ran
    ]
    if not ran and not found and not any(isinstance(e, FaultPlanted) and e.outcome == "killed" for e in seen):
        found.append(Reason(Verdict.INCONCLUSIVE, "nothing was compared" if codecs else "no sequence was executed"))
    return found


def end_reasons(seen: list[Event]) -> list[Reason]:
    """Return that a run has no end, or was interrupted; of a resumed one the last attempt counts."""
    starts_and_ends = [e for e in seen if isinstance(e, RunStarted | RunFinished)]
    last = starts_and_ends[-1] if starts_and_ends else None
    if not isinstance(last, RunFinished):
        return [Reason(Verdict.INCONCLUSIVE, "the run did not come to its end")]
    return [Reason(Verdict.INCONCLUSIVE, "the run was interrupted")] if last.interrupted else []
