"""Short answers: a text, some words, a number, a letter."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal, InvalidOperation

from kvverify.accuracy.checkers.answer_text import whole_answer
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_LONGEST_NUMBER = 60  # characters; a run of digits beyond it is no answer
_ARTICLE = re.compile(
    r"(?<![A-Za-z'])A(?= (?!is\b|because\b|as\b|since\b|and\b|or\b)[a-z])"
)  # no letter chosen: «A number»
_MARKED = r"(?:answer|option|choice|答案|选项|选择)\s*(?:is|are|:|：|为|是)?\s*[:：]?\s*[*(（\[\"'\s]*([{letters}])(?![A-Za-z])"


def exact(sample: Sample, text: str) -> Score:
    """Score 1 where the answer is one of the references: white space at the ends and how Unicode composes letters do not count.

    ``details["ignore_case"]`` takes case away as well.
    """

    def plain(words: str) -> str:
        composed = unicodedata.normalize("NFC", words.strip())
        return composed.casefold() if sample.details.get("ignore_case") else composed

    answer = plain(whole_answer(sample, text))
    return Score(float(answer in map(plain, sample.references)), format_error="" if answer else "empty answer")


def contains(sample: Sample, text: str) -> Score:
    """Score 1 where the answer holds every reference (``details["any"]``: one of them) and none of ``details["absent"]``.

    Case does not count; a reference that is a number is no part of a longer one. Aspect ``found``: the share that it holds.
    """
    answer = _wide(whole_answer(sample, text))
    found = [_holds(answer, reference) for reference in sample.references]
    enough = any(found) if sample.details.get("any") else all(found)
    spoilt = any(_holds(answer, word) for word in sample.details.get("absent", ()))
    error = "" if answer.strip() else "empty answer"
    return Score(float(enough and not spoilt), format_error=error, aspects={"found": sum(found) / len(found)})


def number(sample: Sample, text: str) -> Score:
    """Score 1 where the answer's number is the reference's: the one after ``details["marker"]`` (default ####), else the last.

    Thousands separators, currency signs and trailing zeros do not count, as in GSM8K's own rule. Where ``marker`` is given, an answer
    without it is a format error besides.
    """
    answer = unicodedata.normalize("NFKC", whole_answer(sample, text))
    marker = sample.details.get("marker")
    _, found, after = answer.rpartition(marker or "####")
    numbers = _NUMBER.findall(after if found else answer)
    value = _decimal(numbers[0 if found else -1]) if numbers else None
    error = "no number in the answer" if value is None else f"no {marker} in the answer" if marker and not found else ""
    return Score(float(value is not None and value in map(_decimal, sample.references)), format_error=error)


def choice(sample: Sample, text: str) -> Score:
    """Score 1 where the answer chooses the letter of the reference among ``details["letters"]`` (default ABCD)."""
    answer = unicodedata.normalize("NFKC", whole_answer(sample, text)).strip()
    chosen = _letter(answer, str(sample.details.get("letters", "ABCD")))
    return Score(float(chosen in sample.references), format_error="" if chosen else "no choice in the answer")


def _wide(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _holds(answer: str, reference: str) -> bool:
    word = _wide(reference)
    before = r"(?<!\d)(?<!\d\.)" if word[:1].isdigit() else ""
    if re.match(r"\d{3}(?!\d)", word):
        before += r"(?<!\d,)"  # the end of a number with a thousands separator
    after = r"(?!\d)(?!\.\d)(?!,\d{3}(?!\d))" if word[-1:].isdigit() else ""
    return re.search(f"{before}{re.escape(word)}{after}", answer) is not None


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "")) if len(text) <= _LONGEST_NUMBER else None
    except InvalidOperation:
        return None


def _letter(answer: str, letters: str) -> str:
    marked = re.findall(_MARKED.replace("{letters}", letters), answer, re.IGNORECASE)
    if marked:
        return str(marked[-1]).upper()
    answer = _ARTICLE.sub(" ", answer)
    first = re.match(rf"[*(\[\"'\s]*([{letters}])(?:[*)\].:,\"']|\s*(?:\n|\Z))", answer)
    if first:
        return first.group(1)
    alone = set(re.findall(rf"(?<![A-Za-z'])([{letters}])(?![A-Za-z'])", answer))
    return alone.pop() if len(alone) == 1 else ""
