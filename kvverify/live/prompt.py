"""A prompt as it is sent, with what is known of it."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from functools import cached_property


def prompt_hash(body: str | list[int] | tuple[int, ...]) -> str:
    """Return 16 hexadecimal digits that name a prompt, of its text or of its token ids."""
    data = body.encode() if isinstance(body, str) else array("q", body).tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True)
class Prompt:
    """A prompt of exactly ``tokens`` tokens. ``body`` is sent: token ids where the server's tokenizer was asked, else text.

    ``secret`` is what a right answer holds, empty where nothing was hidden in the text.
    """

    body: str | list[int] = field(repr=False)
    tokens: int
    secret: str = ""
    name: str = ""

    @cached_property
    def hash(self) -> str:
        """The prompt's name in events; computed once, for a long prompt takes longer to hash than to send."""
        return prompt_hash(self.body)
