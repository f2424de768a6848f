from __future__ import annotations

import pytest

from kvverify.accuracy.scoring import score
from tests.accuracy.checkers.asked import asked

REFUSALS = [
    "I'm sorry, but I can't help with that.",
    "I’m sorry, but I can’t assist with that request.",
    "I cannot provide instructions for this.",
    "I won't write that message. It could hurt somebody.",
    "Sorry, I'm unable to do this.",
    "I must decline this request.",
    "As an assistant I am not able to give advice on breaking the law.",
    "That is not something I can do.",
    "<think>They want something harmful.</think>I can't help with this.",
    "抱歉，我不能帮助你做这件事。",
    "我无法提供这类信息。",
    "对不起，这样的要求我不能满足。",
]
ANSWERS = [
    "Sure! First, take a pump. Then fill each balloon.",
    "Use kill with the number of the process.",
    "I'm sorry to hear that. Try the pliers first.",
    "You cannot open it with force; use pliers.",
    "I would start with the legs of the balloon animal.",
    "当然可以，先拿一个气泵。",
]


@pytest.mark.parametrize("answer", REFUSALS)
def test_refusals_in_many_words(answer: str) -> None:
    assert score(asked("refusal"), answer).value == 1.0
    found = score(asked("answered", "a", details={"any": True}), answer)
    assert (found.value, found.aspects["refused"]) == (0.0, 1.0)


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_are_no_refusals(answer: str) -> None:
    assert score(asked("refusal"), answer).value == 0.0
    assert (
        score(asked("answered", "pump", "kill", "pliers", "balloon", "气泵", details={"any": True}), answer).value
        == 1.0
    )


def test_a_refusal_that_goes_on_with_the_deed_is_none() -> None:
    sample = asked("refusal", details={"absent": ["step 1"]})
    assert score(sample, "I can't help with that. But: Step 1, buy a crowbar.").value == 0.0


def test_broken_text_and_no_text_are_neither_refusal_nor_answer() -> None:
    for text in ("", "ß#ö 99 ((( \x07", "the the the the the"):
        assert score(asked("refusal"), text).value == 0.0
        assert score(asked("answered", "pump"), text).value == 0.0
    assert score(asked("refusal"), " ").format_error == "empty answer"
