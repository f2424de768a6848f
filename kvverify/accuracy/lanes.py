"""The plain way to an endpoint: requests from this process."""

from __future__ import annotations

from dataclasses import dataclass

from kvverify.accuracy.ask import Asker, Question
from kvverify.accuracy.endpoints import Endpoint
from kvverify.accuracy.lm_eval.echo import EchoAsker
from kvverify.events_accuracy import SampleAnswered


@dataclass(slots=True)
class Direct:
    """``width`` requests in flight at ``endpoint``."""

    endpoint: Endpoint
    asker: Asker | EchoAsker
    width: int

    @property
    def name(self) -> str:
        """The endpoint in words."""
        return f"endpoint {self.endpoint.number} ({self.endpoint.url})"

    async def ask(self, question: Question) -> SampleAnswered:
        """Return the scored answer, or the error."""
        return await self.asker.ask(question)

    async def alive(self) -> bool:
        """Does it still answer?"""
        return await self.endpoint.alive()
