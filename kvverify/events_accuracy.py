"""Events of accuracy runs and of their comparisons. What they say is a figure, never a verdict: see kvverify.verdicts_accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvverify.events import Event

NOT_JUDGED = "not judged yet"  # the error of an answer that waits for the judge


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmStarted(Event):
    """An accuracy run began to measure one arm: what it is, and which samples it will be asked.

    ``identity`` holds everything that decides a score (model, engine, build, kv_cache_dtype, tokenizer and corpus hashes,
    template, answer prefix, sampling, prefix caching, tier, control ...), one flat level, so that two arms can be
    compared key by key. ``planned`` maps "task/length" to a number of samples. ``samples_hash`` is over the keys of all of them.
    ``margin`` in points is the suite's, fixed before anything was asked; 0 where the log does not say.
    """

    label: str
    suite: str
    kind: str  # retrieval, short, business or safety
    identity: dict[str, Any]
    planned: dict[str, int]
    samples_hash: str
    notes: list[str] = field(default_factory=list)
    margin: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAnswered(Event):
    """One sample was asked and scored, or was not (``error``: counted as missing, and never scored as an empty answer).

    ``key`` is the hash of prompt, prefix, references and rule; arms are paired by it. ``cluster`` names the document or haystack
    that samples share. ``score`` is 0 to 1. ``prompt_tokens`` are the server's count (-1: it says none), ``sent_tokens``
    ours; ``cached_tokens`` of them were read from a cache. ``format_error`` says why an answer that had to have a form has
    not. ``aspects`` are further figures of the answer, 0 to 1, such as the share of right parameters. Times in seconds.
    """

    task: str
    length: int
    index: int
    key: str
    cluster: str
    score: float = 0.0
    binary: bool = True  # the score is 0 or 1 by rule, so that McNemar and Tango apply
    prompt_tokens: int = -1
    sent_tokens: int = -1
    cached_tokens: int = -1
    output_tokens: int = 0
    text: str = ""
    finish: str = ""
    format_error: str = ""
    aspects: dict[str, float] = field(default_factory=dict)
    ttft: float = 0.0
    itl: float = 0.0
    seconds: float = 0.0
    endpoint: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLeftOut(Event):
    """A planned sample was not sent at all, such as one longer than the context; counted, never cut short in silence."""

    task: str
    length: int
    index: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReadStated(Event):
    """Which tokens of an arm were read from the cache in its stored format, and what shows it.

    ``decode_steps``: generated tokens after the first, each of which reads the whole cache. ``hit_tokens``: prompt tokens that
    came from a cache, so that the rest of the prompt read them packed. ``continued_tokens``: prompt tokens of later prefill chunks,
    which read earlier chunks packed; -1 where the engine does not tell its chunk. ``raw_tokens`` were computed from raw K/V.
    """

    label: str
    samples: int
    decode_steps: int
    hit_tokens: int
    continued_tokens: int
    raw_tokens: int
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmIncluded(Event):
    """A comparison took in the run of an arm: ``role`` is base, candidate, again (the base once more), tier or control.

    ``samples`` were planned, ``missing`` counts those of them without a score, ``events_hash`` is the SHA-256 of its event log. ``score``
    is the plain mean over tasks and lengths. ``packed_reads``: tokens that were read from the cache in its stored format, -1 where
    the run states none. ``gates`` proofs of its tier were tried and ``gates_open`` of them failed, for ``gate_reasons``.
    ``repeats`` are questions that the plan holds twice; the first answer counts.
    """

    label: str
    role: str
    path: str
    events_hash: str
    identity: dict[str, Any]
    samples: int
    missing: int
    score: float
    cache_read: str  # what CacheReadStated says, in words; empty where the run has none
    format_errors: int = 0
    ttft: float = 0.0  # medians, seconds
    itl: float = 0.0
    finished: bool = True
    suite: str = ""
    packed_reads: int = -1
    gates: int = 0
    gates_open: int = 0
    gate_reasons: list[str] = field(default_factory=list)
    repeats: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityDiffered(Event):
    """Two arms differ in something that decides scores. ``declared``: it is the variable under test, and may."""

    base: str
    arm: str
    variable: str
    base_value: str
    arm_value: str
    declared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmsPaired(Event):
    """Samples of two arms were paired by key: ``common`` are planned in both, ``only_base`` and ``only_arm`` in one of them.

    ``unscored`` of the common ones lack a score in one arm at least. ``part``: the arm may hold a part of the base's samples, since
    it is no format under test. ``refused`` says why the two are not compared at all.
    """

    base: str
    arm: str
    effect: str
    common: int = 0
    only_base: int = 0
    only_arm: int = 0
    unscored: int = 0
    part: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceMeasured(Event):
    """The paired difference of two arms over one ``scope``: "all", "task NAME", "length N" or "task NAME length N".

    ``difference`` is arm - base, ``low`` and ``high`` its interval at ``confidence`` = 1 - 2 alpha, in parts of 1. ``method`` says how
    they were made: tango, clustered-t or bootstrap. ``base_only`` counts pairs that base alone has right (b), ``arm_only`` those that the arm alone has
    right (c); both -1 for fractional scores. ``z`` and ``p_noninferior`` test a loss of at least ``margin``, ``p_mcnemar`` any difference,
    ``p_holm`` is that adjusted for all tasks. ``needed`` is the number of pairs for ``power`` at the discordance seen; -1 where unknown.
    ``primary``: the one claim that decides. ``missing`` pairs are those that one arm lacks. A statistic without a value is None in words: ``undefined``.

    ``low_worst`` is the lower bound where each missing score is the worst for the arm, ``high_best`` the upper one where it is the best; both
    are the interval's where none is missing. ``bootstrap_low`` and ``bootstrap_high`` are a second interval, of ``draws`` resamples (0: not made).
    For fractional scores ``p_mcnemar`` is that of a paired t test. ``power_reached`` is the chance of showing the margin with these
    pairs if the arm is no worse; ``needed_at_loss`` is ``needed`` if the loss seen is the true one, ``needed_to_differ`` the number of pairs
    that show a difference as large as the one seen; -1 where no number does. Fewer than ``least_pairs`` show the margin in no case.

    ``needed`` is the size of the score test that decides, ``needed_textbook`` what published tables say for it. ``smallest_margin`` is what these
    pairs, with the clusters they have, could show if nothing differed (1: nothing). ``given`` names documents or haystacks that samples share and that
    are taken as given: the difference is then that on these alone.
    """

    base: str
    arm: str
    effect: str  # format, tier, control, again, or the declared variable where it is another one
    scope: str
    primary: bool
    binary: bool
    pairs: int
    missing: int
    base_score: float
    arm_score: float
    difference: float
    low: float
    high: float
    confidence: float
    method: str
    margin: float
    alpha: float
    base_only: int = -1
    arm_only: int = -1
    discordance: float = -1.0
    z: float = 0.0
    p_noninferior: float = 1.0
    p_mcnemar: float = 1.0
    p_holm: float = 1.0
    clusters: int = 0
    design_effect: float = 1.0
    power: float = 0.0
    needed: int = -1
    undefined: str = ""
    low_worst: float = -1.0
    high_best: float = 1.0
    bootstrap_low: float = -1.0
    bootstrap_high: float = 1.0
    draws: int = 0
    power_reached: float = 0.0
    needed_at_loss: int = -1
    least_pairs: int = 0
    needed_to_differ: int = -1
    needed_textbook: int = -1
    smallest_margin: float = 0.0
    given: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipsMeasured(Event):
    """How many answers change between two arms beyond those that change when the base is asked again.

    ``rate`` is of base against arm, ``floor`` of base against base again, ``excess`` their difference with its interval, each as a share of ``pairs``.
    """

    base: str
    arm: str
    pairs: int
    rate: float
    floor: float
    excess: float
    low: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricsJudged(Event):
    """What a judge said of one answer. Each of ``rubrics`` is {rubric, passed, text, error, tries}; ``passed`` None: neither yes nor no.

    ``left_out`` counts rubrics beyond the first 50. One without a yes or no makes the sample's score missing.
    """

    task: str
    length: int
    index: int
    key: str
    judge: str
    rubrics: list[dict[str, Any]]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextsScored(Event):
    """The score of a rubric-judged task: ``total`` is the plain mean of ``contexts``, each the mean of its samples.

    ``missing`` samples have no score and are in no mean, ``empty`` contexts have none at all. Without any the total is ``undefined``.
    """

    task: str
    total: float
    contexts: dict[str, float]
    samples: int
    missing: int
    empty: int
    undefined: str = ""
