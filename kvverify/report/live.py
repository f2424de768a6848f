"""Runs against live servers as tables: what the server is, which tier served what and how that is proved, what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvverify.events import (
    ConfigurationChecked,
    EngineDescribed,
    Event,
    ExcessMeasured,
    GateEvaluated,
    IsolationMeasured,
    ReplayCompared,
    RequestAnswered,
    TierFlushed,
    Verdict,
)
from kvverify.reasons import worst
from kvverify.report.live_checks import check_cases, configurations, isolation, sessions
from kvverify.report.section import LiveCase, Section
from kvverify.report.words import duration, plural, size
from kvverify.verdicts_live import WHOLE_PASS, Proofs, gate_reasons, is_live, pair_reasons, pairs

TIERS = ("hbm", "dram", "disk")
FEW_REASONS = 5


@dataclass(frozen=True, slots=True)
class Live:
    """What a report shows of a live or accuracy run; ``line`` are the numbers that the verdict rests on.

    ``measured`` are events that go into the JSON document as they are.
    """

    line: str = ""
    sections: list[Section] = field(default_factory=list)
    cases: list[LiveCase] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    kind: str = "live"
    measured: list[Event] = field(default_factory=list)


def live_report(events: Iterable[Event]) -> Live | None:
    """Return the tables of a live run, None of another one."""
    seen = list(events)
    if not is_live(seen):
        return None
    sections = [make(seen) for make in SECTIONS]
    cases = [*check_cases(seen), *_gate_cases(seen), *_pair_cases(seen)]
    return Live(_line(seen), [s for s in sections if s.rows], cases, _gaps(seen))


def _line(seen: list[Event]) -> str:
    answers = _last_answers(seen)
    failed = sum(bool(e.error) for e in answers)
    proofs = Proofs.of(seen)
    judged = [e for e in seen if isinstance(e, ReplayCompared) and e.judged]
    used = [e for e in judged if proofs.counts(e)]
    different = sum(e.different for e in used)
    words = [plural(len(answers), "request")] + ([f"{failed} failed"] if failed else [])
    if judged:
        words.append(f"{len(used)} of {plural(len(judged), 'comparison')} of tiers proved, {different} different")
    if isolated := [e for e in seen if isinstance(e, IsolationMeasured)]:
        last = isolated[-1]
        words.append(f"{last.right} of {plural(last.qualified, 'answer')} that count right, {last.foreign} foreign")
        words += [f"{plural(last.new_prompts, 'prompt')} that no tier knew computed beside"] if last.new_prompts else []
    if checks := {e.check: e.outcome for e in seen if isinstance(e, ConfigurationChecked)}:
        outcomes = list(checks.values())
        words.append(f"{plural(len(checks), 'check')} of the configuration, {outcomes.count('fault')} faults")
    return ", ".join(words)


def _engine(seen: list[Event]) -> Section:
    described = [e for e in seen if isinstance(e, EngineDescribed)]
    rows: list[list[str]] = []
    if described:
        last = described[-1]
        facts = {k: v for k, v in last.info.items() if k not in ("options", "notes", "kv_layers")}
        rows = [[key.replace("_", " "), _words(value)] for key, value in facts.items()]
        rows += [["note", note] for note in last.notes]
        rows += [[f"option {key}", _words(value)] for key, value in dict(last.info.get("options") or {}).items()]
    return Section("Server", "What the server says of itself.", ["what", "value"], rows)


def _arms(seen: list[Event]) -> Section:
    answers, gates = _last_answers(seen), Proofs.of(seen).by_request.values()
    rows = []
    for arm in dict.fromkeys(e.arm for e in answers):
        asked = [e for e in answers if e.arm == arm]
        good, own = [e for e in asked if not e.error], [e for e in gates if e.arm == arm]
        counted = [_counted(own, f"{tier}_hit_tokens") for tier in TIERS]
        loaded = _counted(own, "loaded_bytes")
        rows.append(
            [
                *(arm, str(len(asked)), str(len(asked) - len(good)), _proved(own)),
                *("–" if n is None else f"{n:,}" for n in counted),
                "–" if loaded is None else size(loaded),
                *(duration(median(times)) if times else "–" for times in _times(good)),
            ]
        )
    head = ["arm", "requests", "failed", "proved", *(f"{t} hits" for t in TIERS), "loaded", "TTFT", "ITL"]
    caption = "Hit tokens and loaded bytes as the server counts them; medians of the time to the first token and between tokens."
    return Section("Arms", caption, head, rows, frozenset(range(1, len(head))), brief=True)


def _differences(seen: list[Event]) -> Section:
    proofs, rows = Proofs.of(seen), []
    compared = [e for e in seen if isinstance(e, ReplayCompared)]
    for base, arm, what in dict.fromkeys((e.base, e.arm, e.what) for e in compared):
        own = list({(e.round, e.request): e for e in compared if (e.base, e.arm, e.what) == (base, arm, what)}.values())
        usable = [e for e in own if not e.refused]
        largest = max((e.largest_difference for e in usable), default=0.0)
        judged = any(e.judged for e in own)
        verdict = str(_pair_verdict(seen, base, arm, what)[0])
        rows.append(
            [
                *(arm, base, what, str(len(own)), str(sum(proofs.counts(e) for e in own)), str(len(own) - len(usable))),
                *(str(sum(e.different for e in usable)), f"{largest:.3g}" if what == "answers" else "–"),
                verdict if judged else ("noise floor" if arm.startswith(base) else "shown, not judged"),
            ]
        )
    head = ["arm", "against", "what", "compared", "proved", "refused", "differ", "largest difference", "verdict"]
    caption = "Tokens and logprobs of the answers, or digests of the KV blocks, in two arms; the largest difference of a logprob."
    return Section("Differences", caption, head, rows, frozenset(range(3, 8)), brief=True)


def _excess(seen: list[Event]) -> Section:
    last = {(e.base, e.arm, e.statistic): e for e in seen if isinstance(e, ExcessMeasured)}
    rows = [
        [
            *(e.arm, e.base, e.statistic, str(e.requests), f"{e.floor:.3g}", f"{e.value:.3g}", f"{e.excess:.3g}"),
            f"{e.low:.3g} to {e.high:.3g} ({e.confidence:.1%})",
        ]
        for e in last.values()
    ]
    head = ["arm", "against", "statistic", "requests", "floor", "value", "excess", "interval"]
    caption = "How much more the arm differs than its base from itself; a paired bootstrap over prompts."
    return Section("Excess over the noise floor", caption, head, rows, frozenset(range(3, 8)))


def _gates(seen: list[Event]) -> Section:
    gates = Proofs.of(seen).by_request.values()
    rows = []
    for arm in dict.fromkeys(e.arm for e in gates):
        own = [e for e in gates if e.arm == arm]
        reasons = list(dict.fromkeys(reason for e in own for reason in e.reasons))
        more = f"; and {len(reasons) - FEW_REASONS} more" if len(reasons) > FEW_REASONS else ""
        witnesses = next((e.witnesses for e in own if e.witnesses), [])
        rows.append([arm, _proved(own), ", ".join(witnesses) or "–", "; ".join(reasons[:FEW_REASONS]) + more or "–"])
    caption = "Whether requests came from the tier of their arm, what shows it beside hit counters (of the first), what is missing."
    return Section("Proof of the tier", caption, ["arm", "proved", "evidence", "missing"], rows)


def _flushes(seen: list[Event]) -> Section:
    rows = [
        [e.tier, "yes" if e.claimed else "no", e.proof or "not proved", e.poison or e.detail or "not overwritten"]
        for e in seen
        if isinstance(e, TierFlushed)
    ]
    caption = "Before each pass from a lower tier, in order. A flush drops hashes only; the bytes must be overwritten as well."
    return Section("Flushes", caption, ["tier", "server says success", "proof", "overwritten by"], rows)


SECTIONS: list[Callable[[list[Event]], Section]] = [
    isolation,
    sessions,
    configurations,
    _arms,
    _differences,
    _excess,
    _gates,
    _flushes,
    _engine,
]


def _gate_cases(seen: list[Event]) -> list[LiveCase]:
    by_arm = gate_reasons(seen)
    gates = Proofs.of(seen).by_request.values()
    return [
        LiveCase(
            "gate", arm, worst([Verdict.PASS, *(r.verdict for r in by_arm.get(arm, []))]), _texts(by_arm.get(arm, []))
        )
        for arm in dict.fromkeys(e.arm for e in gates)
    ]


def _pair_cases(seen: list[Event]) -> list[LiveCase]:
    return [
        LiveCase("tiers", f"{arm} against {base}, {what}", *_pair_verdict(seen, base, arm, what))
        for base, arm, what in pairs(seen)
    ]


def _pair_verdict(seen: list[Event], base: str, arm: str, what: str) -> tuple[Verdict, list[str]]:
    """Return the verdict of one pair by itself; its gates' reasons stand elsewhere and are not repeated."""
    reasons, proofs = pair_reasons(seen, base, arm, what), Proofs.of(seen)
    judged = [e for e in seen if isinstance(e, ReplayCompared) and e.judged]
    last = {(e.round, e.request): e for e in judged if (e.base, e.arm, e.what) == (base, arm, what)}.values()
    open_ = sum(not proofs.counts(e) and not e.refused for e in last)
    texts = _texts(reasons) + ([f"{open_} of {len(last)} comparisons are not proved"] if open_ else [])
    verdicts = [Verdict.PASS, *(r.verdict for r in reasons), *([Verdict.INCONCLUSIVE] if open_ else [])]
    return worst(verdicts), texts


def _gaps(seen: list[Event]) -> list[str]:
    """Return what the server's adapter or the plan says was left out."""
    described = [e for e in seen if isinstance(e, EngineDescribed)]
    return list(described[-1].notes) if described else []


def _texts(reasons: Iterable[Any]) -> list[str]:
    return [reason.text for reason in reasons]


def _last_answers(seen: Iterable[Event]) -> list[RequestAnswered]:
    return list({(e.arm, e.round, e.request): e for e in seen if isinstance(e, RequestAnswered)}.values())


def _proved(gates: Sequence[GateEvaluated]) -> str:
    if not gates:
        return "–"
    if all(e.request == WHOLE_PASS for e in gates):
        return "in total" if all(e.satisfied for e in gates) else "no"
    return f"{sum(e.satisfied for e in gates)} of {len(gates)}"


def _counted(gates: Sequence[GateEvaluated], name: str) -> int | None:
    counts = [e.counted.get(name) for e in gates]
    known = [n for n in counts if isinstance(n, int)]
    return sum(known) if known else None


def _times(answers: Sequence[RequestAnswered]) -> tuple[list[float], list[float]]:
    return [e.ttft for e in answers], [e.itl for e in answers if e.itl > 0]


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_words(v) for v in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
