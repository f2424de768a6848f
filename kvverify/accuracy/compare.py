"""Arms compared pair by pair: what differs in their identity, in their samples, in their scores, and in what changes by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvverify.accuracy.arm import CANDIDATE_ROLES, Arm, arm_of
from kvverify.accuracy.difference import CLUSTERED_T, Claim, bootstrap, estimate, strata_mean, table
from kvverify.accuracy.identity import (
    AGAIN,
    CONTROL,
    differences,
    effect_of,
    may_differ,
    must_differ,
    nearest_base,
    refusal,
)
from kvverify.accuracy.options import SCRAMBLE
from kvverify.accuracy.pairing import Pair, Pairing, given_documents, pair, scopes
from kvverify.accuracy.size import size_of
from kvverify.errors import UsageError
from kvverify.events import Event
from kvverify.events_accuracy import ArmsPaired, DifferenceMeasured, FlipsMeasured
from kvverify.logged_options import LoggedOptions
from kvverify.stats.bootstrap import DRAWS
from kvverify.stats.flips import excess_flips
from kvverify.stats.holm import holm
from kvverify.stats.tango import least_pairs

Emit = Callable[[Event], None]
PART_ROLES = ("tier", "control")  # may have been asked a part of the base's samples
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePlan(LoggedOptions):
    """Which runs are compared in which role, and what is tested. ``margin`` is in points, ``vary`` names the variables under test.

    ``fixed_documents``: what samples share is taken as given, and the claim is about it alone.
    """

    base: str
    runs: tuple[str, ...] = ()
    again: str | None = None
    tier: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    margin: float = 1.0
    alpha: float = 0.05
    power: float = 0.8
    vary: tuple[str, ...] = ("kv_cache_dtype",)
    draws: int = DRAWS
    fixed_documents: bool = False

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Role and path of every arm, the base first."""
        again = [("again", self.again)] if self.again is not None else []
        several = (("candidate", self.runs), ("tier", self.tier), ("control", self.control))
        return [("base", self.base), *again, *((role, path) for role, paths in several for path in paths)]


def read_arms(plan: ComparePlan, read: Callable[[Path], tuple[Sequence[Event], str]]) -> list[Arm]:
    """Return the arms of a plan, the base first, each with a label of its own.

    Args:
        plan: roles and run folders.
        read: returns the events of a run folder and the SHA-256 of its log.

    Raises:
        UsageError: a folder that holds no arm, or one that is given twice; a control that is none.
    """
    if not plan.runs and not plan.tier:
        raise UsageError("nothing to compare with BASE: give the run of another arm, or one with --tier")
    arms: list[Arm] = []
    for role, path in plan.paths:
        arm = arm_of(*read(Path(path)), Path(path), role)
        if role == CONTROL and (control := arm.start.identity.get(CONTROL)) != SCRAMBLE:
            raise UsageError(
                f"--control {path}: its control is {control or 'none'}; expected a run of accuracy run --control {SCRAMBLE}"
            )
        if same := next((a for a in arms if a.events_hash == arm.events_hash), None):
            raise UsageError(f"run {path}: is the same as {same.path}; a run compared with itself shows nothing")
        arms.append(_named_apart(arm, [a.label for a in arms]))
    return arms


def compare(arms: Sequence[Arm], plan: ComparePlan, seed: int, emit: Emit) -> None:
    """Emit what the arms are, how they were paired, and every difference.

    Args:
        arms: as of :func:`read_arms`, the base first.
        plan: roles, margin and level.
        seed: of the bootstrap.
        emit: takes the events.
    """
    for arm in arms:
        emit(arm.included())
    base, *others = arms
    claim = Claim(margin=plan.margin / 100, alpha=plan.alpha, power=plan.power, draws=plan.draws, seed=seed)
    pairings: dict[str, tuple[Arm, Pairing]] = {}
    candidates = [arm for arm in others if arm.role == "candidate"]
    for arm in others:
        against = nearest_base(arm, [base, *candidates], plan.vary) if arm.role in PART_ROLES else base
        pairing = _paired(against, arm, plan, emit)
        if pairing is not None:
            pairings[arm.label] = against, pairing
            effect = effect_of(arm.role, plan.vary)
            for event in measured(
                against.label,
                arm.label,
                effect,
                pairing.pairs,
                claim,
                claims=arm.role in CANDIDATE_ROLES,
                given=pairing.given,
            ):
                emit(event)
    again = next((arm for arm in others if arm.role == AGAIN), None)
    if again is not None and again.label in pairings:
        for flips in _flips(base, again, others, pairings, claim):
            emit(flips)


def measured(
    base: str, arm: str, effect: str, pairs: Sequence[Pair], claim: Claim, *, claims: bool, given: str = ""
) -> Iterator[DifferenceMeasured]:
    """Yield the difference over all pairs and, where it ``claims`` something, those over tasks and lengths, Holm over tasks."""
    for found in _scoped(base, arm, effect, pairs, claim, claims=claims):
        yield replace(found, given=given)


def _scoped(
    base: str, arm: str, effect: str, pairs: Sequence[Pair], claim: Claim, *, claims: bool
) -> Iterator[DifferenceMeasured]:
    yield _difference(base, arm, effect, (ALL, list(pairs)), claim, primary=claims)
    if not claims:
        return
    found = [_difference(base, arm, effect, scope, claim, primary=False) for scope in scopes(pairs)]
    tasks = [e for e in found if e.scope.startswith("task ") and " length " not in e.scope]
    adjusted = dict(zip((e.scope for e in tasks), holm([e.p_mcnemar for e in tasks]), strict=True))
    for e in found:
        yield replace(e, p_holm=adjusted.get(e.scope, 1.0))


def _paired(base: Arm, arm: Arm, plan: ComparePlan, emit: Emit) -> Pairing | None:
    """Pair two arms and say so; None where they may not be compared."""
    declared = may_differ(arm.role, plan.vary)
    effect = effect_of(arm.role, plan.vary)
    found = differences(base, arm, declared)
    for event in found:
        emit(event)
    if why := refusal(arm, found, must_differ(arm.role, plan.vary)):
        emit(ArmsPaired(base=base.label, arm=arm.label, effect=effect, refused=why))
        return None
    pairing = pair(base, arm)
    if plan.fixed_documents:
        pairing = given_documents(pairing)
    part = arm.role in PART_ROLES
    emit(
        ArmsPaired(
            base=base.label,
            arm=arm.label,
            effect=effect,
            common=len(pairing.pairs),
            only_base=pairing.only_base,
            only_arm=pairing.only_arm,
            unscored=sum(not p.scored for p in pairing.pairs),
            part=part,
        )
    )
    return pairing


def _difference(
    base: str, arm: str, effect: str, scope: tuple[str, list[Pair]], claim: Claim, *, primary: bool
) -> DifferenceMeasured:
    name, pairs = scope
    scored = [p for p in pairs if p.base is not None and p.arm is not None]
    missing = len(pairs) - len(scored)
    known = DifferenceMeasured(
        base=base,
        arm=arm,
        effect=effect,
        scope=name,
        primary=primary,
        binary=all(p.binary for p in scored),
        pairs=len(scored),
        missing=missing,
        base_score=0.0,
        arm_score=0.0,
        difference=0.0,
        low=-1.0,
        high=1.0,
        confidence=claim.confidence,
        method="",
        margin=claim.margin,
        alpha=claim.alpha,
        power=claim.power,
        least_pairs=least_pairs(claim.margin, claim.alpha),
        undefined="no pair has both scores",
    )
    return _with_figures(known, pairs, scored, claim) if scored else known


def _with_figures(known: DifferenceMeasured, pairs: list[Pair], scored: list[Pair], claim: Claim) -> DifferenceMeasured:
    data = table(scored, [p.arm - p.base for p in scored if p.arm is not None and p.base is not None])
    found = estimate(data, claim)
    low_worst, high_best = found.low, found.high
    if known.missing:
        low_worst = min(low_worst, estimate(table(pairs, [p.worst for p in pairs]), claim).low)
        high_best = max(high_best, estimate(table(pairs, [p.best for p in pairs]), claim).high)
    size = size_of(found, len(scored), claim, binary=data.binary)
    again = bootstrap(data, claim) if known.scope == ALL and found.method == CLUSTERED_T else None
    return replace(
        known,
        base_score=strata_mean([p.base for p in scored if p.base is not None], data.strata),
        arm_score=strata_mean([p.arm for p in scored if p.arm is not None], data.strata),
        difference=found.difference,
        low=found.low,
        high=found.high,
        method=found.method,
        base_only=data.lost if data.binary else -1,
        arm_only=data.gained if data.binary else -1,
        discordance=(data.lost + data.gained) / data.values.size,
        z=found.z,
        p_noninferior=found.p_noninferior,
        p_mcnemar=found.p_different,
        clusters=found.clusters,
        design_effect=found.design_effect,
        needed=size.needed,
        needed_textbook=size.textbook,
        smallest_margin=found.smallest_margin,
        undefined=found.undefined,
        low_worst=low_worst,
        high_best=high_best,
        bootstrap_low=again[0] if again else -1.0,
        bootstrap_high=again[1] if again else 1.0,
        draws=claim.draws if again else 0,
        power_reached=size.power_reached,
        needed_at_loss=size.needed_at_loss,
        needed_to_differ=size.needed_to_differ,
    )


def _flips(
    base: Arm, again: Arm, others: Sequence[Arm], pairings: Mapping[str, tuple[Arm, Pairing]], claim: Claim
) -> Iterator[FlipsMeasured]:
    """Yield, for each arm that was paired with the base, what flips beyond the floor: of the pairs that have all three scores."""
    floors = {p.key: p for p in pairings[again.label][1].pairs if p.scored}
    for arm in others:
        if arm is again or arm.role not in CANDIDATE_ROLES or arm.label not in pairings:
            continue
        against, pairing = pairings[arm.label]
        usable = [p for p in pairing.pairs if p.scored and p.key in floors]
        if against is not base or not usable:
            continue
        own = [floors[p.key] for p in usable]
        names = [p.cluster for p in usable]
        found = excess_flips(
            [p.base != p.arm for p in usable],
            [p.base != p.arm for p in own],
            clusters=names if len(set(names)) < len(names) else None,
            seed=claim.seed,
            draws=claim.draws,
        )
        yield FlipsMeasured(
            base=base.label,
            arm=arm.label,
            pairs=found.items,
            rate=found.value,
            floor=found.floor,
            excess=found.excess,
            low=found.low,
            high=found.high,
            confidence=found.confidence,
        )


def _named_apart(arm: Arm, taken: Sequence[str]) -> Arm:
    names = [arm.label, f"{arm.label} ({arm.role})", f"{arm.label} ({arm.path.name})"]
    names += [f"{arm.label} ({n})" for n in range(2, len(taken) + 3)]
    return replace(arm, label=next(name for name in names if name not in taken))
