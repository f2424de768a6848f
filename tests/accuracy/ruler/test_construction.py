"""How the prompts of each task are built; what other ports get wrong, by name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from hypothesis import given
from hypothesis import strategies as st

from kvverify.accuracy.corpora import haystack
from kvverify.accuracy.ruler import source
from kvverify.accuracy.ruler.drawing import Order
from kvverify.accuracy.ruler.haystack import sentence_starts
from kvverify.accuracy.ruler.needles import DEPTHS
from kvverify.accuracy.ruler.sizing import generator, largest
from kvverify.accuracy.ruler.templates import NOISE
from kvverify.errors import UsageError
from tests.accuracy.ruler import ingredients
from tests.accuracy.ruler.ingredients import context, made, spec

NEEDLE = re.compile(r"One of the special magic (\w+) for (.+?) is: (\S+)\.")  # a noun may be two words


def context_of(prompt: str, before: str, after: str) -> str:
    return prompt.partition(before)[2].rpartition(after)[0]


def test_needles_among_noise_are_lines_of_their_own() -> None:
    for sample in made("niah_single_1", 4096, samples=20):
        lines = context_of(sample.prompt, "afterwards.\n", "\nWhat is").split("\n")
        assert Counter(lines)[NOISE] == len(lines) - 1
        (needle,) = [line for line in lines if line != NOISE]
        assert NEEDLE.fullmatch(needle)
        assert lines[-1] == NOISE  # a needle stands before a line


@pytest.mark.parametrize(("name", "kind"), [("niah_multikey_2", "numbers"), ("niah_multikey_3", "uuids")])
def test_distractors_have_the_form_of_needles_and_other_keys(name: str, kind: str) -> None:
    for sample in made(name, 4096, samples=10):
        lines = context_of(sample.prompt, "afterwards.\n", "\nWhat is").split("\n")
        found = [NEEDLE.fullmatch(line) for line in lines]
        assert all(m is not None and m[1] == kind for m in found)
        query = re.search(r"for (.+) mentioned", sample.prompt)
        assert query is not None
        assert [m[3] for m in found if m is not None and m[2] == query[1]] == list(sample.references)


@pytest.mark.parametrize(
    ("name", "needles", "keys", "references"),
    [
        ("niah_single_2", 1, 1, 1),
        ("niah_single_3", 1, 1, 1),
        ("niah_multikey_1", 4, 4, 1),
        ("niah_multivalue", 4, 1, 4),
        ("niah_multiquery", 4, 4, 4),
    ],
)
def test_needles_stand_between_the_sentences_of_the_essays(name: str, needles: int, keys: int, references: int) -> None:
    essays = " ".join(haystack("emerson-essays", None).text.split())
    for sample in made(name, 8192, samples=10):
        text = sample.prompt.partition("afterwards.\n")[2].rpartition("\nWhat ")[0]
        found = NEEDLE.findall(text)
        assert (len(found), len({key for _, key, _ in found}), len(sample.references)) == (needles, keys, references)
        without = " ".join(NEEDLE.sub("", text).split())
        assert essays.startswith(without)
        before = [text[: m.start()].rstrip() for m in NEEDLE.finditer(text)]
        assert all(not b or b == text.rstrip() or b[-1] in ".?!\"'" or b.endswith(without[-20:]) for b in before)
        assert len(sample.details["depths"]) == references
        assert all(0 <= d <= 100 for d in sample.details["depths"])


def test_depths_are_upstreams_forty() -> None:
    assert (len(DEPTHS), DEPTHS[:4], DEPTHS[-2:]) == (40, (0, 3, 5, 8), (97, 100))


def test_needles_are_hidden_in_another_order_in_each_sample() -> None:
    # upstream shuffles with a fresh generator of seed 42 each time: one permutation for all
    orders = set()
    for sample in made("niah_multivalue", 4096, samples=30):
        hidden = [value for _, _, value in NEEDLE.findall(sample.prompt)]
        orders.add(tuple(sorted(range(4), key=lambda n: hidden.index(sample.references[n]))))
    assert len(orders) > 10


def test_essays_repeat_where_the_text_is_short(tmp_path: Path) -> None:
    # lm-eval caps the haystack at the length of its text
    (tmp_path / "short.txt").write_text("One sentence is here. Another one follows it! And a third?")
    for sample in made("niah_single_2", 4096, context(corpora=tmp_path), haystack="short"):
        assert sample.prompt.count("Another one follows it!") > 40
        assert sample.tokens + 128 > 0.99 * 4096
        assert sample.cluster == "short"


def test_essay_samples_share_one_haystack_and_say_so() -> None:
    assert {s.cluster for s in made("niah_single_2", 2048)} == {"emerson-essays"}
    assert {s.cluster for s in made("niah_single_1", 2048)} == {""}


def test_haystacks_at_several_offsets_are_several_clusters() -> None:
    samples = made("niah_single_2", 2048, samples=12, offsets=4)
    assert len({s.cluster for s in samples}) == 4
    assert [s.cluster for s in samples[:4]] == [s.cluster for s in samples[4:8]]
    assert all(re.fullmatch(r"emerson-essays@\d+", s.cluster) for s in samples)
    opened = {NEEDLE.sub("", s.prompt.partition("afterwards.\n")[2]).split()[0] for s in samples}
    assert all(word[0].isupper() or not word[0].isalpha() for word in opened)
    assert source.facts(spec("niah_single_2", 4096, options={"offsets": 4}), context())["offsets"] == "4"


@pytest.mark.parametrize("kind", ["digits", "llama3"])
def test_haystacks_at_random_offsets_are_a_sample_s_own(kind: str) -> None:
    within = context(ingredients.tokenizer(kind))
    essays = " ".join(haystack("emerson-essays", None).text.split())
    samples = made("niah_single_2", 2048, within, samples=20, offsets="random")
    places = set()
    for sample, upstream in zip(samples, made("niah_single_2", 2048, within, samples=20), strict=True):
        assert sample.cluster == ""
        assert sample.references == upstream.references  # the needle is the same, the text around it is another
        text = sample.prompt.partition("afterwards.\n")[2].rpartition("\nWhat ")[0]
        without = " ".join(NEEDLE.sub("", text).split())
        place = f"{essays} {essays}".index(without)
        assert place == 0 or essays[place - 2] in ".?!\"'”’)"
        places.add(place)
        whole = within.tokenizer.counts([sample.prompt + sample.answer_prefix])[0]
        assert (sample.tokens, whole + 128 + 1 <= 2048) == (whole + within.reserve, True)
    assert len(places) >= 19
    assert made("niah_single_2", 2048, within, samples=20, offsets="random") == samples
    assert source.facts(spec("niah_single_2", 4096, options={"offsets": "random"}), within)["offsets"] == "random"


def test_variables_are_tracked_after_a_solved_example() -> None:
    for sample in made("vt", 4096, samples=10):
        example, again, asked = sample.prompt.partition("\n\nMemorize and track")
        assert again
        solved = re.search(r"they are:  ([A-Z]{3}(?: [A-Z]{3}){4})$", example)
        assert solved is not None
        assert chain_of(example) == solved[1].split()
        assert tuple(chain_of(asked)) == sample.references
        assert [len(v) for v in sample.references] == [5] * 5
        value = re.search(r"VAR [A-Z]{5} = (\d{5})\n", asked)
        assert value is not None
        assert sample.prompt.endswith(f"that are assigned the value {value[1]} in the text above.")
        assert Counter(asked.split("\n"))[NOISE] > 5


def chain_of(text: str) -> list[str]:
    first = re.search(r"^VAR ([A-Z]+) = \d+$", text, re.MULTILINE)
    assert first is not None
    return [first[1], *re.findall(r"^VAR ([A-Z]+) = VAR [A-Z]+ $", text, re.MULTILINE)]


def test_the_answer_prefix_of_vt_is_spelled_right() -> None:
    # lm-eval keeps "assgined", which upstream mended
    sample = made("vt", 4096, samples=1)[0]
    assert re.fullmatch(
        r" Answer: According to the chain\(s\) of variable assignment in the text above, "
        r"5 variables are assigned the value \d{5}, they are: ",
        sample.answer_prefix,
    )


def listed_words(text: str) -> list[str]:
    return numbered_words(text.partition("most often.\n")[2].partition("\nQuestion")[0])


def numbered_words(text: str) -> list[str]:
    items = re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", text)
    assert [int(n) for n, _ in items] == list(range(1, len(items) + 1))
    return [word for _, word in items]


@pytest.mark.parametrize(
    ("length", "often", "seldom", "example"), [(16_384, 30, 3, (40, 10, 3)), (2048, 6, 1, (20, 3, 1))]
)
def test_common_words_come_after_a_solved_example(
    length: int, often: int, seldom: int, example: tuple[int, int, int]
) -> None:
    # lm-eval builds the example and does not insert it: 65 % of the length at 4,096
    for sample in made("cwe", length, samples=4):
        solved, again, asked = sample.prompt.partition("\nBelow is a numbered list")
        assert again
        words = Counter(listed_words(solved))
        assert sorted(words.values()) == [example[2]] * (example[0] - 10) + [example[1]] * 10
        answer = solved.partition("appear most often in the list are: ")[2]
        assert sorted(numbered_words(answer)) == sorted(w for w, n in words.items() if n == example[1])
        counted = Counter(listed_words(f"Below{asked}"))
        assert {w for w, n in counted.items() if n == often} == set(sample.references)
        assert set(counted.values()) == {often, seldom}
        assert len(sample.references) == 10


def test_frequent_words_leave_room_for_the_answer_and_follow_the_zeta_distribution() -> None:
    # lm-eval sizes fwe to the whole length: 5 of 50 prompts exceed 4,096
    for sample in made("fwe", 4096, samples=50):
        assert len(sample.prompt) + len(sample.answer_prefix) + 1 + 50 <= 4096
        text = context_of(sample.prompt, "appeared coded words. ", "\nQuestion: Do not")
        counted = Counter(text.split(" ")).most_common()
        assert counted[0][0] == "..."
        assert tuple(word for word, _ in counted[1:4]) == sample.references
        assert [n for _, n in counted[1:4]] == sorted({n for _, n in counted[1:4]}, reverse=True)
        assert counted[3][1] > counted[4][1]
        ratio = counted[0][1] / counted[1][1]
        assert 3.9 < ratio < 4.2  # 1 : 2^-2


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    ingredients.write_corpus(tmp_path, "squad", ingredients.squad_stand_in(), "squad-stand-in")
    ingredients.write_corpus(tmp_path, "hotpotqa", ingredients.hotpotqa_stand_in(), "hotpotqa-stand-in")
    return tmp_path


def test_questions_stand_among_documents_of_their_article_first(questions: Path) -> None:
    samples = made("qa_1", 2300, context(corpora=questions), samples=12)
    assert [s.cluster for s in samples] == ["Article 0"] * 12
    assert samples[0].references == ("secret0x0", "secret0x0")
    places = set()
    for sample in samples:
        documents = re.findall(r"Document (\d+):\n(.*?)\n\n", sample.prompt, re.DOTALL)
        assert [int(n) for n, _ in documents] == list(range(1, len(documents) + 1))
        holding = [n for n, (_, text) in enumerate(documents) if sample.references[0] in text]
        assert len(holding) == 1
        places.add(holding[0])
        assert sum("secret0x" in text for _, text in documents) == min(6, len(documents))
    assert len(places) > 2  # upstream: one permutation, so the same place in every sample


def test_impossible_questions_are_left_out_and_the_order_is_the_files(questions: Path) -> None:
    samples = made("qa_1", 4096, context(corpora=questions), samples=0)
    assert len(samples) == 2 * 4 * 6
    asked = [re.search(r"Question: What is (\d) of (\d+)\.(\d+)\?$", s.prompt) for s in samples[:4]]
    assert [m.groups() for m in asked if m] == [("0", "0", "0"), ("1", "0", "0"), ("0", "0", "1"), ("1", "0", "1")]


def test_hotpotqa_documents_have_their_title_and_all_ten_are_there(questions: Path) -> None:
    for sample in made("qa_2", 4096, context(corpora=questions)):
        for n in range(10):
            title = f"Title {sample.index} {n}"
            assert f":\n{title}\nSentence one of {sample.index}. It holds fact{sample.index}x{n}." in sample.prompt
        assert sample.cluster == f"Title {sample.index} 1"


def test_documents_repeat_where_there_are_too_few(questions: Path) -> None:
    sample = made("qa_1", 16_384, context(corpora=questions), samples=1)[0]
    assert sample.tokens > 0.95 * 16_384
    assert sample.prompt.count("secret3x3") > 1


def test_more_questions_than_there_are_is_an_error(questions: Path) -> None:
    with pytest.raises(UsageError, match=r"RULER's qa_2 has 20 questions, 21 are asked for"):
        made("qa_2", 4096, context(corpora=questions), samples=21)


def test_sentences_end_where_a_reader_sees_it() -> None:
    text = (
        'He came. She left! "Why?" asked Mr. Smith. It cost 3.5 dollars, i.e. nothing. J. R. R. Tolkien wrote it. '
        "(Really.) 12 men saw it… and no. one cared. The end"
    )
    words = text.split()
    starts = sentence_starts(words)
    sentences = [" ".join(words[a:b]) for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert sentences == [
        "He came.",
        "She left!",
        '"Why?" asked Mr. Smith.',
        "It cost 3.5 dollars, i.e. nothing.",
        "J. R. R. Tolkien wrote it.",
        "(Really.)",
        "12 men saw it… and no. one cared.",
        "The end",
    ]


@given(size=st.integers(1, 200), seed=st.integers(0, 1000), first=st.integers(0, 250))
def test_an_order_is_a_permutation_whose_beginning_stays(size: int, seed: int, first: int) -> None:
    order = Order(size, generator(seed))
    begun = list(order.first(first))
    whole = order.first(size)
    assert sorted(whole) == list(range(size))
    assert whole[:first] == begun


@given(least=st.integers(0, 50), most=st.integers(0, 300), limit=st.integers(-5, 400))
def test_bisection_finds_the_largest(least: int, most: int, limit: int) -> None:
    expected = max((n for n in range(least, most + 1) if n <= limit), default=None)
    assert largest(lambda n: n <= limit, least, most) == expected
