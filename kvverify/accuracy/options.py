"""What the user decides about an accuracy run, and how it is kept in the event log."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvverify.errors import UsageError
from kvverify.logged_options import LoggedOptions

PLAIN, HBM, DRAM, DISK = TIERS = ("none", "hbm", "dram", "disk")
LOWER = (DRAM, DISK)
SCRAMBLE, RAW_KV = "scramble", "raw-kv"
CONTROLS = ("none", SCRAMBLE, RAW_KV)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyOptions(LoggedOptions):
    """``urls`` serve the same model in the same way, under the name ``served``. ``label`` names the arm.

    ``samples``, ``lengths``, ``tasks`` and ``template``, None or empty, are the suite's. ``concurrency`` is the number in flight
    at each endpoint.

    ``tier``: every sample is computed first and measured when it is served from there, with a gate; ``serial`` samples get a gate
    each. ``control`` scramble: what the packed layers hold is overwritten in between. ``replay``: each sample is sent twice, and the second
    answer counts. ``declare`` are facts that the servers do not tell. ``share``: samples may hit each other's prefixes.
    ``judge_url`` and ``judge_model`` name who scores rubrics.
    """

    urls: tuple[str, ...]
    label: str
    suite: str
    samples: int | None = None
    lengths: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    template: str | None = None
    tokenizer: str | None = None
    corpora: str | None = None
    cache: str | None = None
    engine: str = "auto"
    served: str | None = None
    concurrency: int = 16
    tier: str = PLAIN
    control: str = "none"
    serial: int = 32
    wave: int = 128
    replay: bool = False
    share: bool = False
    shared: bool = False
    declare: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    lmcache_url: str | None = None
    timeout_s: float = 300.0
    settle_s: float = 0.25
    ray: str | None = None
    judge_url: str | None = None
    judge_model: str | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if not self.urls:
            raise UsageError(
                "--url is missing: which server? For a try, start `kvverify lab` and give the URL it prints"
            )
        if len(set(self.urls)) < len(self.urls):
            raise UsageError("--url: the same server stands there twice; each endpoint once")
        if self.waves and len(self.urls) > 1:
            raise UsageError(
                "--tier and --control: HBM is emptied between passes, so give one --url, and one run for each"
            )
        if self.waves and self.replay:
            raise UsageError("--replay: --tier and --control send every sample twice already; leave it out")
        if self.control == SCRAMBLE and self.tier == DRAM:
            raise UsageError(
                "--control scramble: HBM is overwritten, and --tier dram would load over it; leave --tier out"
            )
        if self.control == RAW_KV and (self.tier != PLAIN or self.replay or self.ray is not None):
            raise UsageError("--control raw-kv: `echo` bypasses every cache; leave --tier, --replay and --ray out")
        if (self.judge_url is None) != (self.judge_model is None):
            raise UsageError("--judge-url and --judge-model: a judge is named by both; give the other, too")
        if self.ray is not None and self.waves:
            raise UsageError("--ray: the passes of --tier and --control are in one order; leave it out")

    @property
    def waves(self) -> bool:
        """Do samples go through passes, with a gate on each?"""
        return self.tier != PLAIN or self.control == SCRAMBLE
