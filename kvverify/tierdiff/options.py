"""What the user decides about a tier-diff, and how it is kept in the event log."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvverify.errors import UsageError
from kvverify.logged_options import LoggedOptions
from kvverify.tierdiff.connect import Connection

LONG_TOKENS = 256  # faults of later steps need so many
MOST_REQUESTS = 200_000  # of a run, all rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class TierDiffOptions(LoggedOptions):
    """``requests`` are prompts of one round, each new in every round; the first ``long_requests`` generate at least 256 tokens.

    ``tier`` is the lower tier to test, of an engine that has several. ``prompt_tokens`` is the length of all prompts, in place of lengths at which all tiers hit alike.
    ``concurrency`` is the number in flight in the concurrent arms; 1 leaves them out. ``salt``: a ``cache_salt`` of this run.
    ``shared``: other clients may use the server. ``model`` and ``lmcache_url`` are for the engine adapter.
    """

    url: str
    engine: str = "auto"
    tier: str | None = None
    requests: int = 16
    rounds: int = 1
    concurrency: int = 4
    max_tokens: int = 16
    long_requests: int = 1
    prompt_tokens: int | None = None
    salt: bool = False
    shared: bool = False
    model: str | None = None
    lmcache_url: str | None = None
    timeout_s: float = 300.0
    settle_s: float = 0.25

    def __post_init__(self) -> None:
        """Refuse more prompts than can be told apart."""
        if self.requests * self.rounds > MOST_REQUESTS:
            raise UsageError(
                f"{self.requests} requests in {self.rounds} rounds: expected at most {MOST_REQUESTS} requests of all rounds"
            )

    def connection(self) -> Connection:
        """Return how the server is reached."""
        names = [f.name for f in dataclasses.fields(Connection)]
        return Connection(**{name: getattr(self, name) for name in names})

    def tokens_of(self, request: int) -> int:
        """Return how many tokens request number ``request`` of a round generates."""
        return max(LONG_TOKENS, self.max_tokens) if request < self.long_requests else self.max_tokens
