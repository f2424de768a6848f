"""The verdict of checks of live servers: tiers compared, sessions kept apart, configurations looked at.

Nothing counts that its gate does not prove. Of one request in one arm, asked again after an interruption, the last answer and
the last gate count; a difference that was once proved stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvverify.events import (
    ConfigurationChecked,
    Event,
    ExcessMeasured,
    GateEvaluated,
    ReplayCompared,
    RequestAnswered,
    RunStarted,
    SessionChecked,
    Verdict,
)
from kvverify.reasons import Reason

LIVE_COMMANDS = ("tier-diff", "isolation", "doctor")
WHOLE_PASS = -1  # GateEvaluated.request of a gate on totals
NEW = "-new"  # after the name of an arm: prompts that no tier knows, computed beside its requests
AGAIN = "-again"  # an arm and the same arm again are the noise floor of the first
CONCURRENT = "concurrent"  # in the name of an arm: who shares a batch is up to the server, so no floor of it is exact


def is_live(seen: Iterable[Event]) -> bool:
    """Is this a run against a server?"""
    return any(isinstance(e, RunStarted) and e.command in LIVE_COMMANDS for e in seen)


def live_reasons(seen: list[Event]) -> list[Reason]:
    """Return what keeps a live run from being a PASS, problems and missing ends apart.

    FAIL: a proved comparison of two tiers differs where the engine's noise is exactly zero; where it is not, the interval of the
    excess lies above 0; foreign content in a session, or a wrong answer of a qualified one; a fault of configuration.
    INCONCLUSIVE: a gate that is not satisfied, a refused comparison, no valid noise floor, an excess that the requests cannot
    bound by the floor, failed requests, an unknown configuration, nothing compared.
    """
    by_arm = gate_reasons(seen)
    found = [
        *(r for arm in by_arm.values() for r in arm),
        *request_reasons(seen),
        *(r for pair in pairs(seen) for r in pair_reasons(seen, *pair)),
        *session_reasons(seen),
        *configuration_reasons(seen),
    ]
    return found or _nothing_done(seen)


@dataclass(frozen=True, slots=True)
class Proofs:
    """What gates prove: ``by_request`` the last gate of every (arm, round, request), ``counting`` the comparisons that can decide.

    A comparison counts by the gates that were there before it: a later attempt proves nothing of an earlier one.
    """

    by_request: dict[tuple[str, int, int], GateEvaluated]
    counting: frozenset[ReplayCompared]

    @classmethod
    def of(cls, seen: Iterable[Event]) -> Proofs:
        """Go through the events in order."""
        gates: dict[tuple[str, int, int], GateEvaluated] = {}
        counting = []
        for e in seen:
            if isinstance(e, GateEvaluated):
                gates[e.arm, e.round, e.request] = e
            elif isinstance(e, ReplayCompared) and not e.refused and _proved(gates, e):
                counting.append(e)
        return cls(gates, frozenset(counting))

    def counts(self, e: ReplayCompared) -> bool:
        """Can this comparison decide anything?"""
        return e in self.counting


def _proved(gates: Mapping[tuple[str, int, int], GateEvaluated], e: ReplayCompared) -> bool:
    """Is there a gate of both arms, and is every one that concerns this request satisfied?"""
    for arm in (e.base, e.arm):
        own = [gates[key] for key in ((arm, e.round, e.request), (arm, e.round, WHOLE_PASS)) if key in gates]
        if not own or not all(gate.satisfied for gate in own):
            return False
    return True


def floors(seen: Iterable[Event]) -> dict[tuple[str, int, int], ReplayCompared]:
    """Return the last comparison of each arm with the same arm again, by (arm, round, request)."""
    compared = (e for e in seen if isinstance(e, ReplayCompared) and e.what == "answers" and e.arm == e.base + AGAIN)
    return {(e.base, e.round, e.request): e for e in compared}


def gate_reasons(seen: Iterable[Event]) -> dict[str, list[Reason]]:
    """Return, for each arm with a gate, what it does not prove."""
    gates: dict[str, list[GateEvaluated]] = {}
    for gate in Proofs.of(seen).by_request.values():
        gates.setdefault(gate.arm, []).append(gate)
    found: dict[str, list[Reason]] = {}
    for arm, own in gates.items():
        open_ = [e for e in own if not e.satisfied]
        why = _short("; ".join(dict.fromkeys(reason for e in open_ for reason in e.reasons)))
        text = f"{arm}: tier not proved in {len(open_)} of {len(own)}: {why}"
        found[arm] = [Reason(Verdict.INCONCLUSIVE, text)] if open_ else []
    return found


def request_reasons(seen: list[Event]) -> list[Reason]:
    """Return which requests failed, or gave what is no logprob."""
    last = {(e.arm, e.round, e.request): e for e in seen if isinstance(e, RequestAnswered)}
    found = []
    # a logprob that is null or not a number is an answer, and a wrong one; what did not come is none
    for unsound, verdict, what in (
        (True, Verdict.FAIL, "have no number for a logprob"),
        (False, Verdict.INCONCLUSIVE, "failed"),
    ):
        failed = [e for e in last.values() if e.error and e.bad_logprob is unsound]
        if failed:
            first = failed[0]
            where = f"arm {first.arm}, round {first.round}, request {first.request}: {first.error}"
            found.append(Reason(verdict, f"{len(failed)} of {len(last)} requests {what}, first {where}"))
    return found


def pairs(seen: Iterable[Event]) -> list[tuple[str, str, str]]:
    """Return (base, arm, what) of all judged comparisons."""
    return list(dict.fromkeys((e.base, e.arm, e.what) for e in seen if isinstance(e, ReplayCompared) and e.judged))


def pair_reasons(seen: list[Event], base: str, arm: str, what: str) -> list[Reason]:
    """Return what is wrong with the judged comparisons of ``arm`` with ``base``."""
    judged = [e for e in seen if isinstance(e, ReplayCompared) and e.judged]
    compared = [e for e in judged if (e.base, e.arm, e.what) == (base, arm, what)]
    proofs, found = Proofs.of(seen), []
    last = {(e.round, e.request): e for e in compared}.values()  # a later attempt may do what an earlier one could not
    if refused := [e for e in last if e.refused]:
        why = _short("; ".join(dict.fromkeys(e.refused for e in refused)))
        found.append(Reason(Verdict.INCONCLUSIVE, f"{arm} against {base}: {len(refused)} not compared: {why}"))
    usable = [e for e in compared if proofs.counts(e)]
    different = [e for e in usable if e.different]
    exact = what == "blocks"
    if not exact:
        known = floors(seen)
        floor = [known.get((base, e.round, e.request)) for e in usable]
        valid = [e for e in floor if e is not None and proofs.counts(e)]
        if len(valid) < len(floor):
            text = f"{arm} against {base}: no valid noise floor for {len(floor) - len(valid)} of {len(floor)} requests"
            found.append(Reason(Verdict.INCONCLUSIVE, text))
        exact = CONCURRENT not in base and not any(e.different for e in valid)
    if different and exact:
        first = different[0]
        where = f"round {first.round}, request {first.request}: {first.detail or _what_differs(first)}"
        text = f"{arm} differs from {base} in the {what} of {len(different)} of {len(usable)} requests, first {where}"
        found.append(Reason(Verdict.FAIL, text))
    elif different:
        found += _excess(seen, base, arm)
    return found


def _what_differs(e: ReplayCompared) -> str:
    return f"position {e.divergence}" if e.divergence >= 0 else f"logprobs by up to {e.largest_difference:.3g}"


def _excess(seen: list[Event], base: str, arm: str) -> list[Reason]:
    measured = {e.statistic: e for e in seen if isinstance(e, ExcessMeasured) and (e.base, e.arm) == (base, arm)}
    if not measured:
        text = f"{arm} differs from {base}, the engine differs from itself too, and the excess was not measured"
        return [Reason(Verdict.INCONCLUSIVE, text)]
    found = []
    for e in measured.values():
        interval = f"{e.statistic}: {e.excess:.3g} above the floor of {e.floor:.3g} ({e.confidence:.1%} interval {e.low:.3g} to {e.high:.3g}, {e.requests} requests)"
        if e.low > 0:
            found.append(Reason(Verdict.FAIL, f"{arm} differs from {base} by more than {base} from itself, {interval}"))
        elif e.high > e.floor:
            text = f"{arm} against {base}: too few requests to bound the excess by the floor, {interval}"
            found.append(Reason(Verdict.INCONCLUSIVE, text))
    return found


def session_reasons(seen: list[Event]) -> list[Reason]:
    """Return whose content got into whose session, which answers are wrong, and whether too few count."""
    checked = [e for e in seen if isinstance(e, SessionChecked)]
    found = []
    if foreign := [e for e in checked if e.foreign]:
        first = foreign[0]
        text = f"{len(foreign)} of {len(checked)} answers hold foreign content, first {first.session} that of {first.foreign}"
        found.append(Reason(Verdict.FAIL, text))
    if wrong := [e for e in checked if e.qualified and not e.right and not e.foreign]:
        first = wrong[0]
        text = f"{len(wrong)} answers of qualified sessions are wrong, first {first.session}, round {first.round}"
        found.append(Reason(Verdict.FAIL, text))
    return [*found, *_bar(seen)]


def _bar(seen: list[Event]) -> list[Reason]:
    """Return why the isolation test is below its bar: of all sessions in all rounds three quarters must count (480 of 640)."""
    start = next((e for e in seen if isinstance(e, RunStarted) and e.command == "isolation"), None)
    if start is None:
        return []
    sessions, rounds = (int(start.options.get(name, 0)) for name in ("sessions", "rounds"))
    checked = {
        (e.session, e.round): e for e in seen if isinstance(e, SessionChecked) and e.session.startswith("session ")
    }
    counting = sum(e.qualified and bool(e.from_tier) for e in checked.values())
    need = max(1, -(-3 * sessions * rounds // 4))
    if counting >= need:
        return []
    text = f"{counting} of {sessions} sessions x {rounds} rounds count, at least {need} must: right from HBM, and proved to come from below"
    return [Reason(Verdict.INCONCLUSIVE, text)]


def configuration_reasons(seen: list[Event]) -> list[Reason]:
    """Return the faults of configuration that the doctor found, and what it could not find out."""
    last = {e.check: e for e in seen if isinstance(e, ConfigurationChecked)}
    verdicts = {"ok": Verdict.PASS, "fault": Verdict.FAIL}
    outcomes = ((verdicts.get(e.outcome, Verdict.INCONCLUSIVE), e) for e in last.values())
    return [
        Reason(verdict, f"{e.check}: {e.found or e.outcome}") for verdict, e in outcomes if verdict is not Verdict.PASS
    ]


def _nothing_done(seen: list[Event]) -> list[Reason]:
    """Return why a run with nothing against it is still no PASS: it compared, asked or looked at nothing."""
    command = next(e.command for e in seen if isinstance(e, RunStarted) and e.command in LIVE_COMMANDS)
    proofs = Proofs.of(seen)
    done = {
        "tier-diff": any(isinstance(e, ReplayCompared) and e.judged and proofs.counts(e) for e in seen),
        "isolation": any(isinstance(e, SessionChecked) and e.qualified for e in seen),
        "doctor": any(isinstance(e, ConfigurationChecked) for e in seen),
    }
    missing = {
        "tier-diff": "nothing was compared that a gate proves",
        "isolation": "no session qualified",
        "doctor": "no configuration was checked",
    }
    return [] if done[command] else [Reason(Verdict.INCONCLUSIVE, missing[command])]


def _short(text: str, most: int = 400) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
