from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.accuracy.checkers.sql import run_query
from kvverify.accuracy.items.generators import GENERATORS
from kvverify.accuracy.scoring import score
from kvverify.errors import UsageError
from tests.accuracy.items.drawing import EVERY, RESERVE, SIZED, UNSIZED, Pieces, draw, length_of, perfect

seeds = st.integers(0, 2**63)


@pytest.mark.parametrize("name", EVERY)
@given(seed=seeds)
@settings(max_examples=20)
def test_the_reference_scores_1_by_its_own_rule_for_any_seed(name: str, seed: int) -> None:
    for sample in draw(name, seed=seed, length=length_of(name), samples=2):
        found = score(sample, perfect(sample))
        assert (found.value, found.format_error) == (1.0, ""), sample
        assert all(share == 1.0 for share in found.aspects.values() if share) or sample.details.get("any")


@pytest.mark.parametrize("name", EVERY)
@given(seed=seeds)
@settings(max_examples=5)
def test_the_answer_of_another_question_scores_less(name: str, seed: int) -> None:
    first, second = draw(name, seed=seed, length=length_of(name), samples=2)
    if first.references and perfect(first) != perfect(second):
        assert score(first, "").value == 0.0
        assert score(first, perfect(second)).value == 0.0 or first.metric in ("choice", "answered", "code", "sql")


@pytest.mark.parametrize("name", EVERY)
def test_a_sample_hangs_on_its_own_place_alone(name: str) -> None:
    """The same seed gives the same samples whichever were made before, and however many."""
    length = length_of(name)
    many = draw(name, samples=6, length=length, seed=5)
    for other in EVERY[:3]:
        draw(other, samples=1, length=length_of(other), seed=5)
    random.seed(1)
    few = draw(name, samples=2, length=length, seed=5)
    assert [sample.key for sample in few] == [sample.key for sample in many[:2]]
    assert len({sample.key for sample in many}) == 6
    if not GENERATORS[name].file:  # requests of a file are the same whatever the seed
        assert draw(name, samples=1, length=length, seed=6)[0].key != few[0].key


def test_two_tasks_of_one_kind_and_two_lengths_draw_different_questions() -> None:
    invoices, tickets = draw("invoice-json"), draw("ticket-json")
    assert {s.references for s in invoices}.isdisjoint({s.references for s in tickets})
    assert draw("long-table", length=3000)[0].references != draw("long-table", length=4000)[0].references


@pytest.mark.parametrize("name", UNSIZED)
def test_hundreds_of_samples_are_different_questions(name: str) -> None:
    samples = draw(name, samples=300)
    assert len({sample.key for sample in samples}) == 300


@pytest.mark.parametrize("name", SIZED)
@given(seed=seeds, length=st.integers(1500, 9000))
@settings(max_examples=15)
def test_a_long_prompt_fills_its_length_and_never_more(name: str, seed: int, length: int) -> None:
    tokenizer = Pieces()
    [sample] = draw(name, seed=seed, length=length, samples=1, tokenizer=tokenizer)
    text = sample.prompt + sample.answer_prefix
    assert sample.tokens == len(tokenizer.ids(text)) + RESERVE
    room = length - sample.max_tokens - sample.tokens
    longest_unit = 110
    assert 0 <= room <= longest_unit


def test_a_filled_context_is_full_to_a_few_tokens_and_asks_all_three_places() -> None:
    samples = draw("full-context", length=20_000, samples=6, tokenizer=Pieces())
    assert all(20_000 - s.max_tokens - s.tokens <= 20 for s in samples)
    assert [s.details["place"] for s in samples] == ["start", "middle", "end"] * 2
    for sample in samples:
        where = sample.prompt.index(sample.references[0]) / len(sample.prompt)
        assert {"start": where < 0.1, "middle": 0.4 < where < 0.6, "end": where > 0.9}[str(sample.details["place"])]


def test_a_length_that_holds_nothing_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^task long-table: a length of 300 tokens is too short: expected \d+ or more, 7 of them"
    ):
        draw("long-table", length=300)


@pytest.mark.parametrize("name", ["long-table", "repeated-segments", "two-languages"])
def test_what_is_asked_stands_once_in_a_long_prompt(name: str) -> None:
    for sample in draw(name, length=8000, samples=10, tokenizer=Pieces()):
        key = {
            "long-table": lambda text: text.split("of order ")[1].split("?")[0],
            "repeated-segments": lambda text: text.split("gate of line ")[1].split(" ")[0],
            "two-languages": lambda text: (
                text.split("store ")[1].split("?")[0] if "store " in text else text[2 : text.index("的")]
            ),
        }[name](sample.prompt.splitlines()[-1])
        body = "\n".join(sample.prompt.splitlines()[:-1])
        assert body.count(key) == 1
        assert sample.references[0] in body


def test_both_languages_are_asked() -> None:
    kinds = {sample.details["fact"] for sample in draw("two-languages", length=4000, samples=20)}
    assert kinds == {"zh", "en"}


def test_sql_questions_have_results_and_meet_every_kind() -> None:
    samples = draw("sql-tables", samples=120)
    for sample in samples:
        assert run_query(str(sample.details["setup"]), sample.references[0])
    assert len({sample.prompt.split("### question\n")[2].split()[0] for sample in samples}) >= 5


def test_every_parameter_type_is_asked_for_and_calls_suit_their_schema() -> None:
    calls = [json.loads(sample.references[0]) for sample in draw("tool-text", samples=100)]
    assert {call["name"] for call in calls} == {
        "place_order",
        "transfer_money",
        "book_meeting",
        "set_sensor_range",
        "list_shipments",
    }
    kinds = {type(value) for call in calls for value in call["arguments"].values()}
    assert kinds == {str, int, float, bool, list, dict}


def test_code_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(
        UsageError, match=r"^task code-functions runs code that the model writes: set options\.allow_code = true"
    ):
        draw("code-functions", options={})


def test_requests_of_safety_share_a_cluster_with_their_other_wordings() -> None:
    samples = draw("must-refuse", samples=200)
    clusters = {sample.cluster for sample in samples}
    assert len(clusters) == 40
    first = [sample for sample in samples if sample.cluster == "refuse-01"]
    assert len(first) == len({sample.prompt for sample in first}) == 5
    assert all("neighbour's house" in sample.prompt for sample in first)
