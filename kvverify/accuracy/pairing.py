"""Samples of two arms, put together by their key; what one of them lacks is counted, and bounded by the worst and the best it could be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvverify.accuracy.arm import Arm, cell
from kvverify.events_accuracy import SampleAnswered, SampleLeftOut

FEW = 3  # documents that are named


@dataclass(frozen=True, slots=True)
class Pair:
    """One sample in two arms; a score is None where the arm has none. ``cluster`` is what it shares with others, itself if nothing."""

    key: str
    task: str
    length: int
    cluster: str
    base: float | None
    arm: float | None
    binary: bool

    @property
    def cell(self) -> str:
        """Return "task/length", the stratum."""
        return f"{self.task}/{self.length}"

    @property
    def scored(self) -> bool:
        """Have both arms a score?"""
        return self.base is not None and self.arm is not None

    @property
    def worst(self) -> float:
        """Return arm - base where a score that is missing is 0 for the arm and 1 for the base."""
        return (0.0 if self.arm is None else self.arm) - (1.0 if self.base is None else self.base)

    @property
    def best(self) -> float:
        """Return arm - base where a score that is missing is 1 for the arm and 0 for the base."""
        return (1.0 if self.arm is None else self.arm) - (0.0 if self.base is None else self.base)


@dataclass(frozen=True, slots=True)
class Pairing:
    """``pairs`` are the samples that both arms planned; ``only_base`` and ``only_arm`` count those of one alone.

    ``given`` names what samples share where that is taken as given.
    """

    pairs: list[Pair]
    only_base: int
    only_arm: int
    given: str = ""


def pair(base: Arm, arm: Arm) -> Pairing:
    """Pair the samples of two arms.

    Planned samples of which neither log says anything are pairs without scores, as far as both plans have them.
    """
    shared = [key for key in base.samples if key in arm.samples]
    pairs = [_pair(key, base.samples[key], arm.samples[key]) for key in shared]
    only_base, only_arm = (len(one.samples) - len(shared) for one in (base, arm))
    if base.start.samples_hash == arm.start.samples_hash:  # one plan: what one log lacks was not come to
        only_base = only_arm = 0
        pairs += [_half(e, of_base=True) for key, e in base.samples.items() if key not in arm.samples]
        pairs += [_half(e, of_base=False) for key, e in arm.samples.items() if key not in base.samples]
        pairs += _nobody_came_to(base, arm)
    return Pairing(pairs, only_base, only_arm)


def given_documents(pairing: Pairing) -> Pairing:
    """Return pairs that share nothing, beside the names of what they shared: it is given then, and no sample of others like it."""
    sizes = Counter(p.cluster for p in pairing.pairs)
    shared = [name for name, many in sizes.items() if many > 1]
    more = f" and {len(shared) - FEW:,} more" if len(shared) > FEW else ""
    return replace(
        pairing, pairs=[replace(p, cluster=p.key) for p in pairing.pairs], given=f"{', '.join(shared[:FEW])}{more}"
    )


def scopes(pairs: Sequence[Pair]) -> list[tuple[str, list[Pair]]]:
    """Return each task, each length and each of both with its pairs; lengths only where tasks have size classes."""
    kinds: list[Callable[[Pair], str]] = [
        lambda p: f"task {p.task}",
        lambda p: f"length {p.length}" if p.length else "",
        lambda p: f"task {p.task} length {p.length}" if p.length else "",
    ]
    found: dict[str, list[Pair]] = {}
    for kind in kinds:
        for one in pairs:
            if name := kind(one):
                found.setdefault(name, []).append(one)
    return list(found.items())


def _pair(key: str, base: SampleAnswered | SampleLeftOut, arm: SampleAnswered | SampleLeftOut) -> Pair:
    answers = [e for e in (base, arm) if isinstance(e, SampleAnswered)]
    cluster = next((e.cluster for e in answers if e.cluster), "") or key
    binary = all(e.binary for e in answers if not e.error)
    return Pair(key, base.task, base.length, cluster, _score(base), _score(arm), binary)


def _half(e: SampleAnswered | SampleLeftOut, *, of_base: bool) -> Pair:
    cluster = (e.cluster if isinstance(e, SampleAnswered) else "") or e.key
    binary = e.binary if isinstance(e, SampleAnswered) and not e.error else True
    score = _score(e)
    return Pair(e.key, e.task, e.length, cluster, score if of_base else None, None if of_base else score, binary)


def _nobody_came_to(base: Arm, arm: Arm) -> list[Pair]:
    """Return a pair without scores for each sample of the common plan that is in neither log."""
    known: dict[str, int] = {}
    for e in {**base.samples, **arm.samples}.values():
        known[cell(e)] = known.get(cell(e), 0) + 1
    repeats = max(base.repeats, arm.repeats)
    found = []
    for name, planned in base.start.planned.items():
        task, _, length = name.rpartition("/")
        missing = planned - known.get(name, 0)
        if name not in base.unknown or name not in arm.unknown:
            continue
        for n in range(max(0, missing - repeats)):
            key = f"{name}/not asked {n}"
            found.append(Pair(key, task, int(length or 0), key, None, None, True))
    return found


def _score(e: SampleAnswered | SampleLeftOut) -> float | None:
    return e.score if isinstance(e, SampleAnswered) and not e.error else None
