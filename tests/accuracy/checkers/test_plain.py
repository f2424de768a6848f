from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.accuracy.scoring import score
from kvverify.errors import UsageError
from tests.accuracy.checkers.asked import asked


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "The answer is {}.",
        "#### {}",
        "3 * 4 = 12, so\n#### {}\n",
        "**{}**",
        "\\boxed{{{}}}",
        "${}",
        "It costs {} €.",
        "12 and then {}.00",
        "Ａ: {}",
    ],
)
@given(number=st.integers(-(10**9), 10**9))
def test_a_number_counts_in_any_form(form: str, number: int) -> None:
    for text in (str(number), f"{number:,}"):
        assert score(asked("number", str(number)), form.format(text)).value == 1.0


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_another_number_does_not(number: int, off: int) -> None:
    assert score(asked("number", str(number)), f"#### {number + off}").value == 0.0


def test_numbers_of_other_writing_and_answers_without_one() -> None:
    assert score(asked("number", "42"), "四十二, that is ４２").value == 1.0
    assert score(asked("number", "0.5"), "#### .5 or 0.50").value == 0.0  # what comes first after the marker counts
    assert score(asked("number", "42"), "about forty").format_error == "no number in the answer"
    assert score(asked("number", "42"), "9" * 5000).format_error == "no number in the answer"
    marked = asked("number", "42", details={"marker": "####"})
    assert (score(marked, "42").value, score(marked, "42").format_error) == (1.0, "no #### in the answer")


@pytest.mark.parametrize(
    "answer",
    [
        "B",
        "B.",
        "(B)",
        "**B**",
        "b is wrong? The answer is B.",
        "Answer: (B)",
        "answer: b",
        "答案是B。",
        "The answer is A. No: the answer is B",
        "I choose B because it is larger.",
        "B: 12",
    ],
)
def test_a_letter_counts_in_any_form(answer: str) -> None:
    assert score(asked("choice", "B"), answer).value == 1.0


@pytest.mark.parametrize("answer", ["", "A or B", "A number is larger", "none", "Because", "E"])
def test_no_clear_letter_is_a_format_error(answer: str) -> None:
    found = score(asked("choice", "B"), answer)
    assert (found.value, found.format_error) == (0.0, "no choice in the answer")


@given(st.text(min_size=1).filter(lambda text: text.strip() and "think>" not in text))
def test_exact(text: str) -> None:
    assert score(asked("exact", text), f" {text}\n").value == 1.0
    assert score(asked("exact", text), unicodedata.normalize("NFD", text)).value == 1.0
    assert score(asked("exact", text), text + "x").value == 0.0
    assert score(asked("exact", text), "").format_error == "empty answer"
    assert score(asked("exact", text.upper(), details={"ignore_case": True}), text.upper().casefold()).value == 1.0


def test_what_comes_after_a_stop_sequence_does_not_count() -> None:
    """A server that ignored ``stop`` made every exact copy wrong."""
    sample = asked("exact", "A1 B2", stop=("\n", "##"))
    assert score(sample, "A1 B2\n### list\nC3").value == 1.0
    assert score(sample, "A1 B2 ## C3\n").value == 1.0
    assert score(sample, "A1 B2 C3\n").value == 0.0


def test_contains_wants_all_or_any_and_nothing_that_is_excluded() -> None:
    both = asked("contains", "Lyon", "42")
    assert score(both, "42 units in LYON.").value == 1.0
    assert score(both, "in Lyon").aspects == {"found": 0.5}
    assert score(both, "in Lyon").value == 0.0
    assert score(asked("contains", "Lyon", "Riga", details={"any": True}), "riga").value == 1.0
    assert score(asked("contains", "Lyon", details={"absent": ["Riga"]}), "Lyon or Riga").value == 0.0


@pytest.mark.parametrize(
    ("number", "answer", "found"),
    [
        ("42", "It is 42.", True),
        ("42", "42,43", True),
        ("43", "42,43", True),
        ("42", "142", False),
        ("42", "420", False),
        ("42", "42.5", False),
        ("42", "3.42", False),
        ("42", "42,000", False),
        ("234", "1,234", False),
        ("12:30", "at 12:30.", True),
        ("12:30", "at 12:305", False),
        ("42", "编号是42。", True),
    ],
)
def test_a_number_is_no_part_of_a_longer_one(number: str, answer: str, *, found: bool) -> None:
    assert score(asked("contains", number), answer).value == float(found)


def test_an_unknown_rule_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"^metric 'numbr': no such rule; did you mean 'number' or"):
        score(asked("numbr", "1"), "1")
    with pytest.raises(UsageError, match=r"^metric rubrics is scored by a judge: name its endpoint$"):
        score(asked("rubrics", details={"rubrics": ["x"]}), "1")


@pytest.mark.parametrize("metric", ["number", "choice", "exact", "contains", "refusal", "answered"])
@given(text=st.text())
def test_no_answer_makes_a_rule_raise(metric: str, text: str) -> None:
    assert score(asked(metric, "\0never"), text).value in (0.0, 1.0)
