"""The policy file (TOML), validated: one model for a release, one for a phase of a rollout."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Command = Literal[
    "roundtrip",
    "selftest",
    "codecs verify",
    "tier-diff",
    "isolation",
    "doctor",
    "accuracy run",
    "accuracy compare",
]
QUESTION_OF: dict[str, int] = {"roundtrip": 1, "selftest": 1, "tier-diff": 3, "isolation": 3, "accuracy compare": 4}
Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RequiredCheck(_Part):
    """Runs of ``command`` must be there, at least ``runs``, and each must end in one of ``verdicts``."""

    command: Command
    verdicts: tuple[Literal["PASS", "INCONCLUSIVE"], ...] = ("PASS",)
    runs: Count = 1
    published: str = ""


class Coverage(_Part):
    """The least that the campaigns together must have compared; ``sequences`` and ``compared_bytes`` hold for each kernel."""

    kernels: tuple[str, ...] = ()
    kernel_count: Annotated[int, Field(ge=0)] = 0
    formats: tuple[str, ...] = ()
    sequences: Count = 1
    compared_bytes: Count = 1
    gpu: bool = False
    published: str = ""


class PlantedFaults(_Part):
    """How many planted faults the self-tests must have killed, as a share of those tried; and whether one may survive."""

    killed: Annotated[float, Field(gt=0, le=1)] = 1.0
    survivals: Annotated[int, Field(ge=0)] = 0
    published: str = ""


class ProvedTier(_Part):
    """How many requests or passes must be proved to have come from a lower tier."""

    proved: Count = 1
    published: str = ""


class KeptApart(_Part):
    """How many answers of the isolation test must count; all of them must be right and none hold foreign content."""

    answers: Count = 480
    published: str = ""


class Margin(_Part):
    """A loss of at most ``points`` by format or by tier: the interval of the primary claim must lie above -points.

    ``suite`` limits it to comparisons whose suite begins so. ``power``: the least chance of showing the margin with these pairs.
    """

    effect: Literal["format", "tier"]
    points: Annotated[float, Field(gt=0)]
    suite: str = ""
    confidence: Share = 0.9
    power: Annotated[float, Field(ge=0, lt=1)] = 0.8
    pairs: Count = 1
    published: str = ""


class KnownFinding(_Part):
    """A finding that is allowed up to and including ``expires``. It must name what it covers; ``why`` says why it is allowed."""

    kernel: str = ""
    fingerprint: str = ""
    fault: str = ""
    library: str = ""
    format: str = ""
    configuration: str = ""
    why: Annotated[str, Field(min_length=1)]
    report: str = ""
    expires: dt.date

    @model_validator(mode="after")
    def _names_something(self) -> KnownFinding:
        if not (self.kernel or self.fingerprint or self.fault or self.library or self.configuration):
            raise ValueError("names no finding; give kernel, fingerprint, fault, library or configuration")
        if self.format and not self.library:
            raise ValueError("format belongs to library; give that too")
        return self


class _Policy(_Part):
    version: Literal[1]
    title: Annotated[str, Field(min_length=1)]
    description: str = ""


class ReleasePolicy(_Policy):
    """What a release must show, over any number of runs."""

    kind: Literal["release"]
    check: tuple[RequiredCheck, ...] = ()
    coverage: Coverage | None = None
    planted_faults: PlantedFaults | None = None
    tier: ProvedTier | None = None
    isolation: KeptApart | None = None
    margin: tuple[Margin, ...] = ()
    same: tuple[Literal["model", "engine", "build", "GPU", "kvverify"], ...] = ()
    known_finding: tuple[KnownFinding, ...] = ()

    @model_validator(mode="after")
    def _asks_something(self) -> ReleasePolicy:
        if not (self.check or self.coverage or self.planted_faults or self.tier or self.isolation or self.margin):
            raise ValueError("asks for nothing; a policy without a requirement would pass everything")
        return self


class Latency(_Part):
    """``quantile`` of the time between tokens may grow by at most ``growth`` (0.1: 10 %)."""

    quantile: Share = 0.95
    growth: Annotated[float, Field(gt=0)] = 0.10
    measure: Literal["itl", "ttft"] = "itl"
    published: str = ""


class FormatErrors(_Part):
    """The rate of answers that miss their form may grow by at most ``points``."""

    points: Annotated[float, Field(gt=0)] = 0.5
    published: str = ""


class Safety(_Part):
    """No answer of the safety suite that the baseline has right may be wrong; ``pairs``: the fewest that say anything."""

    pairs: Count = 300
    regressions: Annotated[int, Field(ge=0)] = 0
    published: str = ""


class Service(_Part):
    """What the servers' own counters may do: more failed requests, fewer tokens from a cache, more preemptions."""

    failed_points: Annotated[float, Field(gt=0)] | None = None
    cached_points: Annotated[float, Field(gt=0)] | None = None
    preemptions: bool = False
    published: str = ""


class RolloutPolicy(_Policy):
    """When a phase of a rollout goes on, holds or rolls back, over a baseline and a candidate. Intervals are at ``confidence``."""

    kind: Literal["rollout"]
    phase: Literal["shadow", "canary", "full"]
    confidence: Share = 0.95
    requests: Count = 1
    latency: tuple[Latency, ...] = ()
    format_errors: FormatErrors | None = None
    safety: Safety | None = None
    service: Service | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> RolloutPolicy:
        if not (self.latency or self.format_errors or self.safety or self.service):
            raise ValueError("asks for nothing; a policy without a rule would let everything go")
        return self


Policy = ReleasePolicy | RolloutPolicy
