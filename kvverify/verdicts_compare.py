"""The verdict of a comparison of accuracy arms, from the figures in its events.

A claim says that an arm loses less than the margin against its base. It is shown, or harm is shown, or neither; the last is
INCONCLUSIVE and never PASS. All claims of a comparison have to be shown, hence none is adjusted for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvverify.events import Event, RunStarted, Verdict
from kvverify.events_accuracy import ArmIncluded, ArmsPaired, DifferenceMeasured, FlipsMeasured, IdentityDiffered
from kvverify.reasons import Reason

COMMAND = "accuracy compare"
FLOOR, CEILING = 0.05, 0.99  # mean scores of the base beyond which a loss cannot be seen
READ_EFFECTS = ("format", "tier")  # claims about what a cache costs, which need a cache that was read


@dataclass(frozen=True, slots=True)
class Compared:
    """What the last attempt of a comparison says: arms by label, the rest in order."""

    arms: dict[str, ArmIncluded]
    differed: list[IdentityDiffered]
    paired: list[ArmsPaired]
    measured: list[DifferenceMeasured]
    flips: list[FlipsMeasured]

    @classmethod
    def of(cls, events: Iterable[Event]) -> Compared:
        """Take the events after the last start."""
        seen = list(events)
        starts = [i for i, e in enumerate(seen) if isinstance(e, RunStarted)]
        seen = seen[starts[-1] if starts else 0 :]
        return cls(
            {e.label: e for e in seen if isinstance(e, ArmIncluded)},
            [e for e in seen if isinstance(e, IdentityDiffered)],
            [e for e in seen if isinstance(e, ArmsPaired)],
            [e for e in seen if isinstance(e, DifferenceMeasured)],
            [e for e in seen if isinstance(e, FlipsMeasured)],
        )

    @property
    def claims(self) -> list[DifferenceMeasured]:
        """The differences that decide."""
        return [e for e in self.measured if e.primary]


def is_compare(seen: Iterable[Event]) -> bool:
    """Is this a comparison of accuracy arms?"""
    return any(isinstance(e, RunStarted) and e.command == COMMAND for e in seen)


def compare_reasons(seen: list[Event]) -> list[Reason]:
    """Return what keeps a comparison from being a PASS, problems and missing ends apart.

    FAIL: harm is shown, the interval of a claim lies below -margin even if missing samples were the best.
    INCONCLUSIVE: arms that differ in more than was declared, or in nothing; other samples; a run that is half finished; an A/A arm that differs from
    the base; a control that did not lower the score; a tier that is not proved; a cache that was not read; a base at its floor or
    ceiling; no interval; a margin that is neither kept nor broken for sure, with the number of pairs that it takes.
    """
    compared = Compared.of(seen)
    found = [r for arm in compared.arms.values() for r in arm_reasons(arm)]
    found += [r for e in compared.paired for r in pairing_reasons(e)]
    found += [r for e in compared.measured for r in check_reasons(e)]
    found += [r for e in compared.claims for r in claim_reasons(compared, e)]
    if not compared.claims and not found:
        found.append(Reason(Verdict.INCONCLUSIVE, "no two arms were compared"))
    return found


def arm_reasons(arm: ArmIncluded) -> list[Reason]:
    """Return what the run of an arm lacks by itself."""
    found = []
    if not arm.finished:
        scored = arm.samples - arm.missing
        found.append(f"{arm.label}: half finished, {scored:,} of {arm.samples:,} samples have a score; resume its run")
    # an answer without a proof is a missing one, and bounds the claim as such; here is an arm without any
    if (arm.role == "tier" or arm.gates) and arm.gates_open == arm.gates:
        why = f": {'; '.join(arm.gate_reasons)}" if arm.gate_reasons else ""
        found.append(f"{arm.label}: nothing proves that it was served from its tier{why}")
    return [Reason(Verdict.INCONCLUSIVE, text) for text in found]


def pairing_reasons(e: ArmsPaired) -> list[Reason]:
    """Return why two arms are not pairs of the same samples."""
    if e.refused:
        return [Reason(Verdict.INCONCLUSIVE, f"{e.arm} against {e.base}: not compared: it {e.refused}")]
    if not _same_samples(e):
        text = (
            f"{e.arm} and {e.base} were asked different samples: {e.common:,} in both, {e.only_base:,} in {e.base} alone, "
            f"{e.only_arm:,} in {e.arm} alone"
        )
        return [Reason(Verdict.INCONCLUSIVE, text)]
    return []


def check_reasons(e: DifferenceMeasured) -> list[Reason]:
    """Return why the A/A arm or the control does not support the claims; nothing for a claim itself."""
    if e.effect == "again" and (e.p_mcnemar < e.alpha or not e.pairs):
        what = (
            f"differs from {e.base} by {points(e.difference)} points (p {e.p_mcnemar:.2g})"
            if e.pairs
            else "has no pair"
        )
        text = (
            f"{e.arm}: the base asked again {what}: something else than the format moves the scores, so nothing counts"
        )
        return [Reason(Verdict.INCONCLUSIVE, text)]
    if e.effect == "control" and not lowered(e):
        text = f"{e.arm}: the control did not lower the score of {e.base} for sure: {figures(e)}; was the cache read at all?"
        return [Reason(Verdict.INCONCLUSIVE, text)]
    return []


def claim_reasons(compared: Compared, e: DifferenceMeasured) -> list[Reason]:
    """Return what keeps one claim from being shown."""
    name = f"{e.arm} against {e.base}"
    if harmed(e) and not _void(compared, e):
        text = f"{name}: harm is shown, {figures(e)}, which lies below the margin of {points(-e.margin)}"
        return [Reason(Verdict.FAIL, text)]
    found = [*_unread(compared, e), *_insensitive(e)]
    if e.undefined:
        found.append(f"{name}: no interval: {e.undefined}")
    elif harmed(e):
        found.append(f"{name}: {figures(e)}, but the arms cannot be compared")
    elif not shown(e):
        found.append(f"{name}: a loss of less than {in_points(e.margin)} is not shown, {figures(e)}; {lacking(e)}")
    return [Reason(Verdict.INCONCLUSIVE, text) for text in found]


def shown(e: DifferenceMeasured) -> bool:
    """Is the loss less than the margin, even if each missing sample is the worst that it can be?

    Fewer pairs than could show it without a single difference do not show it by a lucky gain either.
    """
    if e.undefined or e.pairs < e.least_pairs:
        return False
    return e.low_worst > -e.margin and (not e.draws or e.bootstrap_low > -e.margin)


def harmed(e: DifferenceMeasured) -> bool:
    """Is the loss more than the margin, even if each missing sample is the best that it can be?"""
    if e.undefined:
        return False
    return e.high_best < -e.margin and (not e.draws or e.bootstrap_high < -e.margin)


def lowered(e: DifferenceMeasured) -> bool:
    """Is the score of the arm lower for sure?"""
    return not e.undefined and e.high_best < 0


def flagged(e: DifferenceMeasured) -> bool:
    """Do the arms differ, although the margin is kept?"""
    return shown(e) and e.p_mcnemar < e.alpha


def equivalent(e: DifferenceMeasured) -> bool:
    """Is the arm neither worse nor better by the margin: do both one-sided tests hold, that is, does the interval lie inside both margins?"""
    return shown(e) and e.high_best < e.margin and (not e.draws or e.bootstrap_high < e.margin)


def lacking(e: DifferenceMeasured) -> str:
    """Return what it would take to show the claim."""
    if e.missing and e.low > -e.margin:
        return f"{e.missing:,} missing samples could make it more"
    if e.difference <= -e.margin:
        return "the loss seen is no smaller than the margin, and more than it is not shown either"
    if e.clusters < e.pairs and e.smallest_margin >= e.margin:
        return (
            f"{e.clusters:,} independent samples and documents, of which one weighs too much, could not show less than "
            f"{points(e.smallest_margin)} points even if nothing differed: ask about more documents"
        )
    if e.pairs < e.needed:
        return f"that takes about {e.needed:,} pairs at this discordance, {e.needed - e.pairs:,} more"
    if e.needed_at_loss > e.pairs:
        return f"that takes about {e.needed_at_loss:,} pairs if the loss seen is the true one, {e.needed_at_loss - e.pairs:,} more"
    return "there are pairs enough on average, so this was chance or few clusters; test again with new samples"


def figures(e: DifferenceMeasured) -> str:
    """Return a difference with its interval and counts, in points, and on which documents alone it was seen."""
    counts = f"b {e.base_only:,}, c {e.arm_only:,}, " if e.base_only >= 0 else ""
    interval = "no interval" if e.undefined else f"{e.confidence:.0%} interval {points(e.low)} to {points(e.high)}"
    given = f", on {e.given} alone" if e.given else ""
    return f"{points(e.difference)} points ({interval}, {counts}n {e.pairs:,}{given})"


def points(share: float) -> str:
    """Return a difference of scores in points.

    >>> points(-0.0123), points(0.0)
    ('-1.23', '0.00')
    """
    text = f"{100 * share:+.2f}"
    return text[1:] if float(text) == 0 else text


def in_points(share: float) -> str:
    """Return a share of the score in points.

    >>> in_points(0.01), in_points(0.025)
    ('1 point', '2.5 points')
    """
    text = f"{100 * share:g}"
    return f"{text} point{'' if text == '1' else 's'}"


def _same_samples(e: ArmsPaired) -> bool:
    return not e.only_arm and (e.part or not e.only_base)


def _void(compared: Compared, claim: DifferenceMeasured) -> bool:
    """Can nothing be said because the A/A arm differs, or because the samples are not the same?"""
    aside = any(e.effect == "again" and check_reasons(e) for e in compared.measured)
    own = [e for e in compared.paired if (e.base, e.arm) == (claim.base, claim.arm)]
    return aside or not all(_same_samples(e) for e in own)


def _unread(compared: Compared, e: DifferenceMeasured) -> list[str]:
    arm = compared.arms.get(e.arm)
    if e.effect not in READ_EFFECTS or (arm is not None and arm.packed_reads > 0):
        return []
    if arm is None or arm.packed_reads < 0:
        return [f"{e.arm}: its run does not say which tokens were read from the cache"]
    return [f"{e.arm}: no token was read from the cache in its stored format, so its scores say nothing about it"]


def _insensitive(e: DifferenceMeasured) -> list[str]:
    if not e.pairs or FLOOR <= e.base_score <= CEILING:
        return []
    where, why = ("floor", "hard to lose anything") if e.base_score < FLOOR else ("ceiling", "easy to show a loss")
    return [f"{e.base}: at its {where} with {100 * e.base_score:.2f} points: the samples are too {why}"]
