"""What holds of every sample: its length, its seed, its answers; golden ones are pinned."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.accuracy.ruler import source, templates
from kvverify.accuracy.ruler.needles import TASKS as NEEDLE_TASKS
from kvverify.accuracy.ruler.tasks import TASKS
from kvverify.accuracy.ruler.words import common, keys
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import score
from kvverify.accuracy.source import Tokenizer
from kvverify.accuracy.tokens import Bytes
from kvverify.errors import UsageError
from tests.accuracy.ruler import ingredients
from tests.accuracy.ruler.ingredients import KINDS, context, made, spec, tokenizer

QUESTIONS = ("qa_1", "qa_2")
OWN_TEXT = [name for name in TASKS if name not in QUESTIONS]
LONG_ENOUGH = {"cwe": 8192}  # in bytes, a list of 300 words and an example take more than 4,096
WORDS = ("9aaa3597", "39357255")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    ingredients.write_corpus(folder, "squad", ingredients.squad_stand_in(), "squad-stand-in")
    ingredients.write_corpus(folder, "hotpotqa", ingredients.hotpotqa_stand_in(), "hotpotqa-stand-in")
    return folder


def exact(tokens: Tokenizer, sample: Sample) -> int:
    return len(tokens.ids(sample.prompt + sample.answer_prefix))


def test_the_thirteen_tasks_are_there_with_their_metric_and_answer_length() -> None:
    assert len(TASKS) == 13
    expected = {**dict.fromkeys(NEEDLE_TASKS, 128), "vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32}
    assert {name: task.max_tokens for name, task in TASKS.items()} == expected
    assert {name for name, task in TASKS.items() if task.metric == "ruler-part"} == set(QUESTIONS)


@settings(max_examples=20)
@given(
    name=st.sampled_from(list(TASKS)),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**31),
    length=st.integers(3500, 6000),
    reserve=st.integers(0, 200),
)
def test_tokens_are_exact_and_never_exceed_the_length(
    *, corpora: Path, name: str, kind: str, seed: int, length: int, reserve: int
) -> None:
    length += 5000 * (name == "cwe")  # numbered words take five tokens each in these small vocabularies
    tokens = tokenizer(kind)
    for sample in made(name, length, context(tokens, seed=seed, reserve=reserve, corpora=corpora)):
        assert sample.tokens == exact(tokens, sample) + reserve
        assert sample.tokens + sample.max_tokens <= length
        assert sample.length == length


@pytest.mark.parametrize("name", OWN_TEXT)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_fill_their_length(name: str, kind: str) -> None:
    # lm-eval sized needle tasks in steps of 25 and 500 units: 54 % of the length for multikey_3 at 4,096
    length = 16_384 if name == "cwe" else 8192
    for sample in made(name, length, context(tokenizer(kind))):
        assert 0.95 * length <= sample.tokens + sample.max_tokens <= length


@pytest.mark.parametrize("name", TASKS)
def test_the_answer_is_in_the_prompt_and_scores_one(name: str, corpora: Path) -> None:
    for sample in made(name, LONG_ENOUGH.get(name, 4096), context(corpora=corpora)):
        assert all(reference in sample.prompt for reference in sample.references)
        assert sample.metric == TASKS[name].metric
        assert score(sample, " ".join(sample.references).upper()).value == 1.0
        assert score(sample, "nothing of it").value == 0.0


@pytest.mark.parametrize("name", TASKS)
def test_only_seed_task_length_and_index_decide_a_sample(name: str, corpora: Path) -> None:
    # lm-eval: one global random stream, so a sample depends on the tasks that ran before it
    length = LONG_ENOUGH.get(name, 4096)
    alone = made(name, length, context(corpora=corpora), samples=4)
    random.seed(7)
    state = random.getstate()
    others = spec("niah_single_1", 2048), spec(name, 2 * length, length, samples=2)
    after = [s for task in others for s in source.samples(task, context(corpora=corpora)) if s.task == name]
    assert random.getstate() == state
    assert [s for s in after if s.length == length] == alone[:2]
    assert {s.key for s in alone}.isdisjoint(s.key for s in made(name, length, context(corpora=corpora, seed=2)))
    assert len({s.key for s in alone}) == 4


def test_the_index_is_not_the_key() -> None:
    # upstream overwrites `index` with the needle's character offset: 3623 came twice
    sample = made("niah_single_1", 2048, samples=1)[0]
    assert dataclasses.replace(sample, index=99).key == sample.key
    assert dataclasses.replace(sample, prompt=sample.prompt + " ").key != sample.key


@pytest.mark.parametrize("reserve", [0, 1, 57])
def test_the_reserve_is_respected(reserve: int) -> None:
    # lm-eval reserves nothing for the chat template
    for name in OWN_TEXT:
        for sample in made(name, LONG_ENOUGH.get(name, 4096), context(reserve=reserve), samples=2):
            assert len(sample.prompt) + len(sample.answer_prefix) + reserve + sample.max_tokens <= sample.length
            assert sample.tokens == len(sample.prompt) + len(sample.answer_prefix) + reserve


@pytest.mark.parametrize("kind", ["llama2", "llama3"])
def test_there_is_exactly_one_start_token(kind: str) -> None:
    # three of them gave 49.6 where 70.0 was right
    tokens = tokenizer(kind)
    for name in OWN_TEXT:
        sample = made(name, 16_384 if name == "cwe" else 4096, context(tokens), samples=1)[0]
        ids = tokens.ids(sample.prompt + sample.answer_prefix, start=True)
        assert (ids[0], ids.count(tokens.start_ids[0])) == (tokens.start_ids[0], 1)
        assert len(ids) == sample.tokens


def test_a_tokenizer_that_joins_over_spaces_is_counted_whole() -> None:
    tokens = tokenizer("joined")
    parts = sum(tokens.counts([" the", " soul", " of", " the", " world"]))
    assert tokens.counts([" the soul of the world"])[0] < parts
    for sample in made("niah_multivalue", 4096, context(tokens), samples=20):
        assert sample.tokens == exact(tokens, sample) + 1
        assert 0.99 * 4096 < sample.tokens + 128 <= 4096


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [1, 64, 128, 200, 300])
def test_a_length_that_is_too_short_ends_with_an_error(name: str, length: int, corpora: Path) -> None:
    # lm-eval's qa below 4,096 never ends
    with pytest.raises(UsageError, match=rf"RULER's {name} at {length} tokens: .*; take a longer length"):
        made(name, length, context(corpora=corpora), samples=2)


def test_the_error_tells_what_a_question_needs(corpora: Path) -> None:
    with pytest.raises(UsageError) as caught:
        made("qa_2", 900, context(corpora=corpora))
    assert str(caught.value) == (
        "RULER's qa_2 at 900 tokens: the prompt of sample 0 takes at least 886, and 867 are left after 32 for the answer and 1 "
        "for the template; take a longer length"
    )


def test_prompts_are_worded_as_upstream_words_them() -> None:
    single = made("niah_single_1", 2048, samples=1)[0]
    key = re.search(r"magic number for (.+?) mentioned", single.prompt)
    assert key is not None
    assert single.prompt.startswith(
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\nThe grass is green."
    )
    assert f"\nOne of the special magic numbers for {key[1]} is: {single.references[0]}.\n" in single.prompt
    assert single.prompt.endswith(f"\nWhat is the special magic number for {key[1]} mentioned in the provided text?")
    assert single.answer_prefix == f" The special magic number for {key[1]} mentioned in the provided text is"


def test_several_values_are_asked_in_the_plural_and_one_in_the_singular() -> None:
    plural, singular = templates.MANY_VALUES, templates.ONE_VALUE
    for part in ("head", "tail", "answer_prefix"):
        replaced = getattr(plural, part).replace("Some", "A").replace("are all", "is").replace("are", "is")
        assert getattr(singular, part) == replaced
    asked = made("niah_multiquery", 4096, samples=1)[0]
    assert re.search(
        r"What are all the special magic numbers for [^,]+, [^,]+, [^,]+, and [^,]+ mentioned in", asked.prompt
    )
    assert asked.answer_prefix.endswith("mentioned in the provided text are")
    assert len(asked.references) == 4
    assert asked.prompt.startswith("Some special magic numbers are hidden within the following text.")


# the first sample of seed 1 with bytes as tokens: units and key; those with words hold for wonderwords 3.0
GOLDEN = {
    "niah_multikey_3": "11e6c367830ee781",
    "vt": "873f89d977ec30d2",
    "fwe": "14ad9c5d65bb1657",
    "niah_single_1": "4a0b000a10a5f6ff",
    "niah_single_2": "e772f7f025d4c855",
    "niah_single_3": "498c1769b203bc6d",
    "niah_multikey_1": "8ecef35bbf8f9253",
    "niah_multikey_2": "ea84df3e219f43a5",
    "niah_multivalue": "6160732a51f59bf0",
    "niah_multiquery": "5f5da43334a57a04",
    "cwe": "6622f8fa96169144",
    "qa_1": "4ed61e2608cdf8ff",
    "qa_2": "70bf4162af32bf41",
}
WORDLESS = {"niah_multikey_3", "vt", "fwe", *QUESTIONS}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_samples(name: str, corpora: Path) -> None:
    if name not in WORDLESS and (keys().sha256[:8], common().sha256[:8]) != WORDS:
        pytest.skip("another version of wonderwords has other words")
    sample = made(name, LONG_ENOUGH.get(name, 4096), context(Bytes(), corpora=corpora), samples=1)[0]
    assert sample.key[:16] == GOLDEN[name]
