"""What the live view says of events of runs against servers: one line each, or nothing."""

from __future__ import annotations

from kvverify.events import (
    ConfigurationChecked,
    EngineDescribed,
    Event,
    ExcessMeasured,
    GateEvaluated,
    ReplayCompared,
    RequestAnswered,
    SessionChecked,
    TierFlushed,
)
from kvverify.events_accuracy import (
    NOT_JUDGED,
    ArmsPaired,
    ArmStarted,
    CacheReadStated,
    ContextsScored,
    DifferenceMeasured,
    IdentityDiffered,
    SampleAnswered,
    SampleLeftOut,
)
from kvverify.verdicts_compare import figures, harmed
from kvverify.verdicts_live import NEW

RED, YELLOW = "bold red", "yellow"
AUXILIARY = ("canary", "filler", "partial-head", "warm-up")  # requests that belong to no arm


def is_progress(event: RequestAnswered) -> bool:
    """Does this answer belong to the requests that were planned?"""
    return not event.arm.startswith(AUXILIARY) and not event.arm.endswith(NEW)


def live_line(event: Event) -> tuple[str, str] | None:
    """Return what is to be said of ``event`` and its style; None: nothing, for all is well."""
    match event:
        case EngineDescribed():
            notes = "".join(f"\n  {note}" for note in event.notes)
            return f"{event.engine} serves {event.model}{notes}", ""
        case RequestAnswered(error=str(error)) if error:
            return f"{event.arm}, round {event.round}, request {event.request} failed: {error}", YELLOW
        case ArmStarted():
            return f"arm {event.label}: suite {event.suite}, {sum(event.planned.values()):,} samples", ""
        case SampleAnswered(error=str(error)) if error and error != NOT_JUDGED:  # it only waits
            return f"{event.task}, length {event.length}, sample {event.index} failed: {error}", YELLOW
        case ContextsScored():
            total = event.undefined or f"{100 * event.total:.2f} points over {len(event.contexts):,} contexts"
            return f"{event.task}: {total}", ""
        case SampleLeftOut():
            return f"{event.task}, length {event.length}, sample {event.index} left out: {event.reason}", YELLOW
        case CacheReadStated():
            return f"arm {event.label}: {event.evidence}", ""
        case IdentityDiffered(declared=False):
            what = f"{event.variable}: {event.base_value} against {event.arm_value}"
            return f"{event.arm} differs from {event.base} in {what}, not declared", YELLOW
        case ArmsPaired(refused=str(refused)) if refused:
            return f"{event.arm} against {event.base}: not compared: it {refused}", YELLOW
        case DifferenceMeasured(scope="all"):
            style = RED if event.primary and harmed(event) else ""
            return f"{event.arm} against {event.base}, {event.effect}: {figures(event)}", style
        case TierFlushed():
            return _flush(event), "" if event.proof and event.poison else YELLOW
        case GateEvaluated(satisfied=False):
            which = "" if event.request < 0 else f", request {event.request}"
            return f"{event.arm}, round {event.round}{which}: tier not proved: {'; '.join(event.reasons)}", YELLOW
        case ReplayCompared(judged=True, refused=str(refused)) if refused:
            return f"{event.arm} against {event.base}, request {event.request}: not compared: {refused}", YELLOW
        case ReplayCompared(judged=True, different=True):
            text = (
                f"{event.arm} differs from {event.base}, round {event.round}, request {event.request}: {event.detail}"
            )
            return text, RED
        case ExcessMeasured():
            return f"{event.arm} against {event.base}, {event.statistic}: {event.excess:.3g} above the floor", ""
        case SessionChecked() if event.foreign or (event.qualified and not event.right):
            return f"session {event.session}, round {event.round}: {event.detail}", RED
        case ConfigurationChecked():
            style = {"ok": "", "fault": RED}.get(event.outcome, YELLOW)
            return f"{event.check}: {event.outcome}" + (f", {event.found}" if event.found else ""), style
        case _:
            return None


def _flush(event: TierFlushed) -> str:
    said = "flushed" if event.claimed else "not flushed by the server"
    return f"{event.tier} {said}, {event.proof or 'not proved to be empty'}, {event.poison or event.detail or 'not overwritten'}"
