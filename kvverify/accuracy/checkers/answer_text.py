"""What of an answer counts: without its reasoning, and with the fenced block apart from the words around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvverify.accuracy.sample import Sample

_FENCE = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\r?\n(.*?)(?:\r?\n[ \t]*```|\Z)", re.DOTALL)
_REASONED = "</think>"
_LONE_END = re.compile(r"</think>[ \t]*\r?\n")
AROUND = "text around it"


@dataclass(frozen=True, slots=True)
class Fenced:
    """The first fenced block of an answer: its ``body``, and whether there are words ``around`` it."""

    body: str
    around: bool


def whole_answer(sample: Sample, text: str) -> str:
    """Return the sample's answer prefix and what the model wrote after it up to a stop sequence, without a reasoning block.

    A block that was begun and never ended leaves nothing: the model did not come to its answer. Where the template began it, only
    its end stands in the text, on a line's end: inside a JSON string it is a word like others.
    """
    text = _before_stop(text, sample.stop)
    if text.lstrip().startswith("<think>"):
        return text.partition(_REASONED)[2] if _REASONED in text else sample.answer_prefix
    ended = _LONE_END.search(text)
    return text[ended.end() :] if ended else sample.answer_prefix + text


def _before_stop(text: str, stop: tuple[str, ...]) -> str:
    """Cut where a server that heeds ``stop`` would have ended: some servers do not, and some leave the sequence in."""
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


def fenced(answer: str) -> Fenced | None:
    """Return the first fenced block, None without one; a fence that a stop sequence left open ends with the answer."""
    found = _FENCE.search(answer)
    if found is None:
        return None
    around = bool(answer[: found.start()].strip() or answer[found.end() :].strip())
    return Fenced(found.group(2), around)
