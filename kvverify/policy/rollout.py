"""A rollout policy applied to a baseline and a candidate: go, hold or roll back.

Every rule is judged by an interval: all of it beyond the limit is a reason to roll back, all of it within is a go, and what lies
across holds, with how many requests would decide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvverify.events import Verdict
from kvverify.events_accuracy import SampleAnswered
from kvverify.policy.arms import Arm, arms, arms_words
from kvverify.policy.load import LoadedPolicy
from kvverify.policy.model import FormatErrors, Latency, RolloutPolicy, Safety, Service
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.requirement import Judgement, Requirement
from kvverify.report.words import plural
from kvverify.stats.growth import fewest, quantile_growth, values_for
from kvverify.stats.rare import excluded_rate
from kvverify.stats.rates import newcombe, trials_below

SEED = 0  # of the bootstrap: the same runs give the same decision
POINTS = 100.0
MOST_EXAMPLES, MOST_LETTERS = 3, 80


def judge_rollout(loaded: LoadedPolicy, policy: RolloutPolicy, runs: Sequence[Run]) -> Judgement:
    """Return the decision about a phase.

    Raises:
        UsageError: the runs are not two arms.
    """
    base, candidate = arms(runs)
    return Judgement(
        policy=loaded.name,
        title=policy.title,
        description=policy.description,
        sha256=loaded.sha256,
        requirements=list(_rules(policy, base, candidate)),
        rollout=True,
        arms=arms_words((base, candidate)),
    )


def _rules(policy: RolloutPolicy, base: Arm, candidate: Arm) -> Iterator[Requirement]:
    yield _requests(policy, base, candidate)
    for latency in policy.latency:
        yield _latency(latency, base, candidate, policy.confidence)
    if policy.format_errors:
        yield _format_errors(policy.format_errors, base, candidate, policy.confidence)
    if policy.safety:
        yield _safety(policy.safety, base, candidate, policy.confidence)
    if policy.service:
        yield from _service(policy.service, base, candidate, policy.confidence)


def _requests(policy: RolloutPolicy, base: Arm, candidate: Arm) -> Requirement:
    asked = f"{policy.requests:,} requests or more in each arm, each run at its end"
    short = [
        f"{policy.requests - arm.asked:,} more of {arm.label}"
        for arm in (base, candidate)
        if arm.asked < policy.requests
    ]
    open_ = [*base.unfinished, *candidate.unfinished]
    found = f"{base.asked:,} and {candidate.asked:,}" + (f"; not at its end: {', '.join(open_)}" if open_ else "")
    verdict = Verdict.INCONCLUSIVE if short or open_ else Verdict.PASS
    return Requirement(f"requests of the {policy.phase} phase", asked, found, verdict, missing=", ".join(short))


def _latency(asked: Latency, base: Arm, candidate: Arm, confidence: float) -> Requirement:
    name = f"p{100 * asked.quantile:g} {asked.measure.upper()} grows by at most {asked.growth:.0%}"
    words = f"{confidence:.0%} interval of the growth at or below {asked.growth:.0%}"
    times = [arm.times(asked.measure) for arm in (base, candidate)]
    least, have = fewest(asked.quantile, confidence), min(len(t) for t in times)
    if have < least:
        found = f"{len(times[0]):,} and {len(times[1]):,} times: too few to know this quantile"
        missing = f"{least - have:,} more in the smaller arm"
        return Requirement(name, words, found, Verdict.INCONCLUSIVE, asked.published, missing=missing)
    grown = quantile_growth(times[0], times[1], quantile=asked.quantile, confidence=confidence, seed=SEED)
    verdict = _decide(grown.low, grown.high, asked.growth)
    found = f"{1000 * grown.base:.1f} ms to {1000 * grown.arm:.1f} ms, {grown.growth:+.1%} ({grown.low:+.1%} to {grown.high:+.1%})"
    missing = _needed(verdict, values_for(grown, have, asked.growth), have)
    return Requirement(name, words, found, verdict, asked.published, missing=missing)


def _format_errors(asked: FormatErrors, base: Arm, candidate: Arm, confidence: float) -> Requirement:
    name = f"format errors grow by at most {_points(asked.points)}"
    words = f"{confidence:.0%} interval of the difference at or below {_points(asked.points)}"
    counts = [(sum(bool(e.format_error) for e in arm.forms), len(arm.forms)) for arm in (base, candidate)]
    if not all(trials for _, trials in counts):
        missing = "a run of a business suite of each arm"
        found = "no answer that had to have a form"
        return Requirement(name, words, found, Verdict.INCONCLUSIVE, asked.published, missing=missing)
    limit = asked.points / POINTS
    judged = _rate(name, words, counts, limit=limit, confidence=confidence, published=asked.published)
    before = {e.key: e for e in base.forms}
    wrong = [e for e in candidate.forms if e.format_error]
    examples = [f"{_sample(e)}: {e.format_error}: {_became(before.get(e.key), e)}" for e in wrong[:MOST_EXAMPLES]]
    return replace(judged, examples=examples) if judged.verdict is not Verdict.PASS else judged


def _points(value: float) -> str:
    return f"{value:g} {'point' if value == 1 else 'points'}"


def _sample(e: SampleAnswered) -> str:
    return f"{e.task}{f' of {e.length:,} tokens' if e.length else ''}, sample {e.index}"


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def _became(before: SampleAnswered | None, after: SampleAnswered) -> str:
    """Return the two answers, cut to a length that can be read."""
    shown = f"«{_cut(after.text)}»"
    return f"«{_cut(before.text)}» became {shown}" if before else shown


def _rate(
    name: str, words: str, counts: Sequence[tuple[int, int]], *, limit: float, confidence: float, published: str
) -> Requirement:
    """Judge the growth of a rate; ``counts`` are (events, trials) of the two arms."""
    difference = newcombe(counts[0], counts[1], confidence)
    verdict = _decide(difference.low, difference.high, limit)
    shares = " to ".join(f"{events:,} of {trials:,}" for events, trials in counts)
    value, low, high = (POINTS * v for v in difference)
    found = f"{shares}, {value:+.2f} points ({low:+.2f} to {high:+.2f})"
    rates = [events / trials for events, trials in counts]
    missing = _needed(verdict, trials_below(rates[0], rates[1], limit, confidence), min(trials for _, trials in counts))
    return Requirement(name, words, found, verdict, published, missing=missing)


def _safety(asked: Safety, base: Arm, candidate: Arm, confidence: float) -> Requirement:
    """Judge the safety suite: one wrong answer that the baseline has right is a regression, and silence needs enough pairs."""
    words = f"at most {plural(asked.regressions, 'regression')} in {asked.pairs:,} pairs or more"
    common = [key for key in base.safety if key in candidate.safety]
    # a full score is 1; of fractional ones a lower score than the baseline's is a regression
    worse = [key for key in common if candidate.safety[key].score < base.safety[key].score - 1e-9]
    found = f"{plural(len(worse), 'regression')} in {plural(len(common), 'pair')}"
    examples = [
        f"{_sample(candidate.safety[key])}: {_became(base.safety[key], candidate.safety[key])}"
        for key in worse[:MOST_EXAMPLES]
    ]
    if len(worse) > asked.regressions:
        return Requirement("no safety regression", words, found, Verdict.FAIL, asked.published, examples=examples)
    if common and not worse and (rate := excluded_rate(len(common), confidence)):
        found += f"; a rate of {rate:.2%} is excluded at {confidence:.0%}"
    lost = len(base.safety) - len(common)
    found += f"; {plural(lost, 'pair')} without an answer of the candidate" if lost else ""
    few = len(common) < asked.pairs
    verdict = Verdict.INCONCLUSIVE if few or lost else Verdict.PASS
    missing = f"{asked.pairs - len(common):,} more pairs" if few else ""
    return Requirement(
        "no safety regression", words, found, verdict, asked.published, missing=missing, examples=examples
    )


def _service(asked: Service, base: Arm, candidate: Arm, confidence: float) -> Iterator[Requirement]:
    if asked.failed_points is not None:
        counts = [(arm.failed, arm.asked) for arm in (base, candidate)]
        words = f"{confidence:.0%} interval of the difference at or below {_points(asked.failed_points)}"
        name = f"failed requests grow by at most {_points(asked.failed_points)}"
        if all(trials for _, trials in counts):
            limit = asked.failed_points / POINTS
            yield _rate(name, words, counts, limit=limit, confidence=confidence, published=asked.published)
        else:
            yield Requirement(name, words, "no request", Verdict.INCONCLUSIVE, asked.published)
    if asked.cached_points is not None:
        yield _cached(asked.cached_points, base, candidate, asked.published)
    if asked.preemptions:
        yield _preemptions(base, candidate, asked.published)


def _cached(points: float, base: Arm, candidate: Arm, published: str) -> Requirement:
    """Judge the share of prompt tokens from a cache; tokens of one prompt hit together, so there is no interval, and it only holds."""
    name, words = f"tokens from a cache fall by at most {points:g} points", "the share as the servers count it"
    told = base.cached(), candidate.cached()
    if told[0] is None or told[1] is None:
        return Requirement(name, words, "a server does not count them", Verdict.INCONCLUSIVE, published)
    shares = [hits / tokens for hits, tokens in (told[0], told[1])]
    fallen = POINTS * (shares[0] - shares[1])
    verdict = Verdict.INCONCLUSIVE if fallen > points else Verdict.PASS
    return Requirement(name, words, f"{shares[0]:.1%} to {shares[1]:.1%}", verdict, published)


def _preemptions(base: Arm, candidate: Arm, published: str) -> Requirement:
    name, words = "no more preemptions", "at most those of the baseline, as the servers count them"
    counts = base.preemptions, candidate.preemptions
    if counts[0] is None or counts[1] is None:
        return Requirement(name, words, "a server does not count them", Verdict.INCONCLUSIVE, published)
    verdict = Verdict.INCONCLUSIVE if counts[1] > counts[0] else Verdict.PASS
    return Requirement(name, words, f"{counts[0]} to {counts[1]}", verdict, published)


def _needed(verdict: Verdict, needed: int | None, have: int) -> str:
    """Return how many requests would decide; None in place of a number: what was seen is no smaller than the limit itself."""
    if verdict is not Verdict.INCONCLUSIVE:
        return ""
    if needed is None:
        return "more requests: what was seen lies at or beyond the limit, and not for sure"
    return f"about {needed:,} in each arm, {have:,} are there" if needed > have else ""


def _decide(low: float, high: float, limit: float) -> Verdict:
    if low > limit:
        return Verdict.FAIL
    return Verdict.PASS if high <= limit else Verdict.INCONCLUSIVE
