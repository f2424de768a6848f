"""The table of generators, each imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from kvverify.accuracy.items.draw import Draw
from kvverify.accuracy.sample import Sample

_HERE = "kvverify.accuracy.items"


@dataclass(frozen=True, slots=True)
class Generator:
    """``path`` is "module:function". ``sized``: it needs lengths in tokens. ``version`` grows when the same seed gives other samples.

    ``file`` is a shipped file that it takes requests from, ``options`` what a suite may tell it.
    """

    path: str
    sized: bool = False
    version: int = 1
    file: str = ""
    options: frozenset[str] = frozenset()

    def function(self) -> Callable[[Draw], Sample]:
        """Return the function that makes one sample."""
        module, _, name = self.path.partition(":")
        made: Callable[[Draw], Sample] = getattr(importlib.import_module(module), name)
        return made


GENERATORS: dict[str, Generator] = {
    "invoice-json": Generator(f"{_HERE}.records:invoice"),
    "ticket-json": Generator(f"{_HERE}.records:ticket"),
    "tool-text": Generator(f"{_HERE}.tool_requests:in_text"),
    "tool-chat": Generator(f"{_HERE}.tool_requests:by_interface"),
    "sql-tables": Generator(f"{_HERE}.sql_tables:question"),
    "code-functions": Generator(f"{_HERE}.functions:completion", options=frozenset({"allow_code"})),
    "word-problems": Generator(f"{_HERE}.short_answers:word_problem"),
    "choices": Generator(f"{_HERE}.short_answers:choice"),
    "copies": Generator(f"{_HERE}.short_answers:copy"),
    "long-table": Generator(f"{_HERE}.long_documents:table", sized=True),
    "repeated-segments": Generator(f"{_HERE}.long_documents:segments", sized=True),
    "full-context": Generator(f"{_HERE}.long_documents:full_context", sized=True),
    "two-languages": Generator(f"{_HERE}.long_documents:two_languages", sized=True),
    "must-refuse": Generator(f"{_HERE}.framed:refusals", file="refusals"),
    "must-answer": Generator(f"{_HERE}.framed:harmless", file="harmless"),
}
