"""The events a run emits, and the words for its outcome.

Events are past-tense facts. They are written to events.ndjson one JSON object a line, in order, and everything else (console,
JUnit, Markdown, HTML, exit code) is made from them. A verdict is never read back: kvverify.verdicts computes it each time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Verdict(enum.StrEnum):
    """Outcome of a check, an event or a whole run."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"


EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.ERROR: 2, Verdict.INCONCLUSIVE: 3}
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. ``at`` is seconds since the epoch, set by the writer."""

    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A command that runs checks began, or began again after an interruption (``resumed``)."""

    command: str
    version: str
    seed: int
    options: dict[str, Any]
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProbed(Event):
    """A kernel was looked for. ``available`` False means that it did not run, for ``reason``.

    ``requested`` False: nobody named it, it was only tried because it might run here.
    """

    kernel: str
    available: bool
    requested: bool = True
    reason: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignStarted(Event):
    """One kernel's campaign began: which layouts it will meet and which it refused, with its reasons.

    ``layouts`` maps layout name to KV formats; ``refused`` maps layout name to reason.
    """

    kernel: str
    layouts: dict[str, list[str]]
    refused: dict[str, str]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished(Event):
    """All sequences of one batch ran (those before a failure, where one failed).

    ``steps`` counts executed steps by kind, ``formats`` the sequences by KV format, ``lengths`` the sequences by number of
    steps, ``compared_bytes`` every byte that was compared and ``moved_bytes`` those that a kernel was asked to move.
    """

    batch: int
    kernel: str
    layout: str
    order: str
    sequences: int
    steps: dict[str, int]
    formats: dict[str, int]
    lengths: dict[str, int]
    compared_bytes: int
    moved_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFound(Event):
    """A kernel broke a property: ``kind`` is wrong-bytes, raised, hung, crashed, early-return or contract.

    ``step`` is the index of the step in the shrunk sequence, ``path`` the failure file inside the run folder.
    """

    batch: int
    kernel: str
    layout: str
    kind: str
    step: int
    headline: str
    details: list[str]
    path: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlanted(Event):
    """A planted fault was looked for by one kernel's campaign, or by a command against a server: killed, survived, declared or n/a.

    ``by`` says what killed it (the kind of the failure), ``examples`` and ``seconds`` how long that took. Declared: no client can
    see it, which was said in advance, and none did; ``reason`` names the evidence that is missing.
    """

    fault: str
    name: str
    kernel: str
    outcome: str
    reason: str = ""
    by: str = ""
    headline: str = ""
    examples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecCompared(Event):
    """What real software makes of a KV format was held against the reference codec.

    ``library`` is vllm or lmcache, ``what`` the operation (store fp16, dequant, serialise, disk ...). ``different_bytes`` differ
    and nothing explains them; ``near_midpoint`` counts numbers that differ and lie within float32 error of a decision point.
    ``headline`` names the first wrong field, or how a rule (size, refusal) was broken; it is empty where all is equal.
    """

    library: str
    format: str
    head_size: int
    what: str
    compared_bytes: int
    different_bytes: int
    near_midpoint: int = 0
    headline: str = ""
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescribed(Event):
    """A live server was recognised: ``info`` is what it says of itself, ``notes`` what is missing or odd about it."""

    engine: str
    model: str
    info: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswered(Event):
    """One request of one arm was answered, or was not (``error`` says how; it is counted and never turned into a value).

    ``arm`` is cold, hbm, hbm-again, dram, dram-again, partial, starved, concurrent, filler ..., ``request`` the number of the
    prompt, ``tokens`` and ``logprobs`` the generated ones, times in seconds.
    """

    arm: str
    round: int
    request: int
    prompt_hash: str
    prompt_tokens: int = 0
    cached_tokens: int = -1  # what usage says; -1 where it says nothing
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ttft: float = 0.0
    itl: float = 0.0  # mean time between tokens
    seconds: float = 0.0
    error: str = ""
    bad_logprob: bool = False  # the error is a logprob that is null or not a number: wrong, and not missing


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFlushed(Event):
    """A tier was emptied: ``claimed`` is what the server answered, ``proof`` how it was verified, empty where it was not."""

    tier: str
    claimed: bool
    proof: str = ""
    poison: str = ""  # how free HBM blocks were overwritten, empty where they were not
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEvaluated(Event):
    """Was a request, or a whole pass (``request`` -1), served from the tier of its ``arm``?

    ``reasons`` say what is missing; none means satisfied. ``counted`` and ``expected`` are the numbers behind it.
    """

    arm: str
    round: int
    request: int
    reasons: list[str] = field(default_factory=list)
    counted: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)
    witnesses: list[str] = field(default_factory=list)

    @property
    def satisfied(self) -> bool:
        """Is everything proved that has to be?"""
        return not self.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCompared(Event):
    """The answers to one prompt in two arms were compared, position by position; or, ``what`` "blocks", digests of its KV blocks.

    ``judged`` False: shown and not judged by itself (cold against hit, and the noise floor: one tier against itself). ``refused``
    says why the two cannot be compared, such as unequal hit lengths. ``divergence`` is the first position with another token,
    -1 for none.
    """

    base: str
    arm: str
    round: int
    request: int
    judged: bool
    positions: int = 0
    divergence: int = -1
    largest_difference: float = 0.0  # of the logprobs up to the divergence
    refused: str = ""
    detail: str = ""
    what: str = "answers"

    @property
    def different(self) -> bool:
        """Do the two differ in a token or in any bit of a logprob?"""
        return self.divergence >= 0 or self.largest_difference > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcessMeasured(Event):
    """Where the engine's own noise is not zero: how much more two tiers differ than one tier from itself, with an interval."""

    base: str
    arm: str
    statistic: str
    requests: int
    floor: float
    value: float
    excess: float
    low: float
    high: float
    confidence: float = 0.998  # see kvverify.stats.excess


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChecked(Event):
    """One answer of the isolation test. ``right``: it gives the session's own secret; ``foreign``: whose content it holds instead.

    A session is ``qualified`` by a right answer from HBM; only then is a wrong one worth anything.
    """

    session: str
    round: int
    right: bool
    qualified: bool
    foreign: str = ""
    from_tier: str = ""  # the tier that served it, as far as the gate proves it
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationMeasured(Event):
    """What all answers of the isolation test say together.

    ``qualified`` are those of sessions that qualified and that are proved to have come from the lower tier; ``right`` of them gave
    their own secret. ``excluded_rate`` is the rate of leaks that this many exclude at ``confidence``; -1: none, or there are leaks.
    ``new_prompts`` were computed beside the sessions while those were reloaded.
    """

    answers: int
    qualified: int
    right: int
    foreign: int
    excluded_rate: float = -1.0
    confidence: float = 0.95
    new_prompts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChecked(Event):
    """The doctor looked for one fault of configuration: ``outcome`` is ok, fault or unknown."""

    check: str
    outcome: str
    found: str = ""
    breaks: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemMet(Event):
    """Something of ours or of the environment went wrong; the run cannot be called a pass."""

    where: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The run came to its end. ``interrupted`` is True after Ctrl-C."""

    seconds: float
    interrupted: bool = False
