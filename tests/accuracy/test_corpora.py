"""Corpora: labels are never mixed, checksums hold, and what is missing is told with where to get it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wonderwords")

from kvverify.accuracy.corpora import ESSAYS, SHIPPED_HAYSTACK, haystack
from kvverify.accuracy.question_corpora import hotpotqa, squad
from kvverify.accuracy.ruler import source
from kvverify.accuracy.ruler.words import english
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.accuracy.tokens import Bytes
from kvverify.errors import EnvironmentProblem, UsageError
from kvverify.evals_data import shipped


def facts(name: str, folder: Path | None = None, **options: Any) -> dict[str, str]:
    task = TaskSpec(source="ruler", name=name, lengths=(4096,), options=options)
    return source.facts(task, SourceContext(tokenizer=Bytes(), seed=0, corpora=folder))


def test_what_is_shipped_is_what_its_note_says() -> None:
    note = tomllib.loads((shipped("corpora") / f"{SHIPPED_HAYSTACK}.toml").read_text())
    content = (shipped("corpora") / note["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == note["sha256"]
    assert note["licence"] == "public domain"
    assert content.isascii()
    assert b"gutenberg" not in content.lower()
    assert len(content.split()) == note["words"]


def test_facts_name_haystack_and_words_with_their_checksums() -> None:
    told = facts("niah_single_2")
    assert told["haystack"] == SHIPPED_HAYSTACK
    assert told["haystack_sha256"] == haystack(SHIPPED_HAYSTACK, None).sha256
    assert told["generator"] == "ruler 1"
    assert told["tokenizer"] == "bytes"
    assert len(told["words_sha256"]) == 64
    assert "haystack" not in facts("vt")


def test_lengths_that_ruler_has_not_are_named() -> None:
    task = TaskSpec(source="ruler", name="vt", lengths=(4096, 2048))
    assert source.facts(task, SourceContext(tokenizer=Bytes(), seed=0))["not lengths of RULER"] == "2048"
    assert "not lengths of RULER" not in facts("vt")


def test_the_users_essays_have_a_label_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "PaulGrahamEssays.json").write_text(json.dumps({"text": "An essay. Another sentence."}))
    told = facts("niah_single_2", tmp_path, haystack=ESSAYS)
    assert told["haystack"] == ESSAYS
    assert told["haystack_sha256"] == hashlib.sha256((tmp_path / "PaulGrahamEssays.json").read_bytes()).hexdigest()
    assert facts("niah_single_2", tmp_path)["haystack"] == SHIPPED_HAYSTACK


def test_missing_essays_are_told_with_where_they_come_from(tmp_path: Path) -> None:
    for folder, where in ((None, "no --corpora DIR was given"), (tmp_path, f"not in {tmp_path}")):
        with pytest.raises(UsageError) as caught:
            haystack(ESSAYS, folder)
        assert str(caught.value) == (
            f"paul-graham-essays is needed and {where}: expected PaulGrahamEssays.json there; it is made by "
            "download_paulgraham_essay.py in scripts/data/synthetic/json of github.com/NVIDIA/RULER"
        )


def test_an_unknown_haystack_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no haystack 'emerson-esays': did you mean 'emerson-essays'\? .*--corpora DIR"
    ):
        haystack("emerson-esays", tmp_path)


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Some words of my own.")
    assert haystack("own", tmp_path).label == "own"
    (tmp_path / "own.toml").write_text(f'sha256 = "{"0" * 64}"')
    with pytest.raises(UsageError, match=rf"own\.txt: its SHA-256 is [0-9a-f]{{64}}, expected {'0' * 64}: damaged or"):
        haystack("own", tmp_path)


@pytest.mark.parametrize("note", ["sha256 = 3", 'sha256 = "abc"', "label = 'x'"])
def test_a_note_without_a_checksum_is_refused(note: str, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Words.")
    (tmp_path / "own.toml").write_text(note)
    with pytest.raises(UsageError, match=r'own\.toml: expected sha256 = "64 hexadecimal digits", got'):
        haystack("own", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("own.txt", b" \n ", "it has no words"),
        ("own.txt", b"\xff", "expected UTF-8 text"),
        ("own.json", b"[]", "expected UTF-8 text, or JSON with"),
        ("own.json", b'{"text": 3}', "expected a string under"),
    ],
)
def test_a_haystack_without_text_is_refused(name: str, content: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=line):
        haystack("own", tmp_path)


@pytest.mark.parametrize(("read", "file"), [(squad, "squad.json"), (hotpotqa, "hotpotqa.json")])
def test_missing_questions_are_told_with_file_origin_and_option(read: Any, file: str) -> None:
    with pytest.raises(
        UsageError, match=rf"no --corpora DIR was given: expected {file} or \S+ there; it is .*https://"
    ):
        read(None)


def test_a_squad_that_is_not_the_known_one_needs_a_label_of_its_own(tmp_path: Path) -> None:
    answers = [{"text": "it"}]
    paragraph = {"context": "Here it is.", "qas": [{"question": "?", "is_impossible": False, "answers": answers}]}
    content = json.dumps({"data": [{"title": "A", "paragraphs": [paragraph]}]})
    (tmp_path / "squad.json").write_text(content)
    with pytest.raises(
        UsageError, match=r"squad-v2-dev has 80a5225e\w+: get it again from https\S+ .*squad\.toml beside"
    ):
        squad(tmp_path)
    digest = hashlib.sha256(content.encode()).hexdigest()
    (tmp_path / "squad.toml").write_text(f'sha256 = "{digest}"\nlabel = "squad-v2-dev"')
    with pytest.raises(UsageError, match="a label of its own"):
        squad(tmp_path)
    (tmp_path / "squad.toml").write_text(f'sha256 = "{digest}"\nlabel = "mine"')
    assert facts("qa_1", tmp_path)["questions"] == "mine"
    assert facts("qa_1", tmp_path)["questions_sha256"] == digest


@pytest.mark.parametrize("data", [[], {"data": [{"title": "A"}]}, {"data": 3}])
def test_questions_of_another_form_are_refused(data: Any, tmp_path: Path) -> None:
    content = json.dumps(data)
    (tmp_path / "squad.json").write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    (tmp_path / "squad.toml").write_text(f'sha256 = "{digest}"\nlabel = "mine"')
    with pytest.raises(UsageError, match="not of squad-v2-dev's form"):
        squad(tmp_path)


def test_questions_without_an_answer_are_refused(tmp_path: Path) -> None:
    content = '{"data": []}'
    (tmp_path / "squad.json").write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    (tmp_path / "squad.toml").write_text(f'sha256 = "{digest}"\nlabel = "mine"')
    with pytest.raises(UsageError, match="no answerable question in it"):
        squad(tmp_path)


def test_longer_lists_than_wonderwords_has_need_the_users_english_words(tmp_path: Path) -> None:
    task = TaskSpec(source="ruler", name="cwe", lengths=(600_000,), samples=1)
    with pytest.raises(UsageError, match=r"english-words is needed and not in .*english_words\.json there; .*Git LFS"):
        next(iter(source.samples(task, SourceContext(tokenizer=Bytes(), seed=0, corpora=tmp_path))))
    content = json.dumps({str(n): f"word{n}" for n in range(40_000)})
    (tmp_path / "english_words.json").write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    (tmp_path / "english_words.toml").write_text(f'sha256 = "{digest}"\nlabel = "mine"')
    sample = next(iter(source.samples(task, SourceContext(tokenizer=Bytes(), seed=0, corpora=tmp_path))))
    assert all(reference.startswith("word") for reference in sample.references)
    assert 590_000 < sample.tokens + 120 <= 600_000
    assert facts("cwe", tmp_path)["more_words_sha256"] == digest


def test_english_words_of_another_form_are_refused(tmp_path: Path) -> None:
    (tmp_path / "english_words.json").write_text("[1]")
    digest = hashlib.sha256(b"[1]").hexdigest()
    (tmp_path / "english_words.toml").write_text(f'sha256 = "{digest}"\nlabel = "mine"')
    with pytest.raises(UsageError, match="expected a JSON object whose values are words"):
        english(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("niah_sinlge_1", {}, r"RULER has no task 'niah_sinlge_1'; did you mean 'niah_single_1'"),
        ("vt", {"haystack": "x"}, r"RULER's vt has no option 'haystack'; it takes none"),
        ("niah_single_2", {"ofsets": 2}, r"has no option 'ofsets'; did you mean 'offsets'"),
        (
            "niah_single_2",
            {"offsets": 0},
            r'option offsets: expected 1 to 1000 places at which haystacks begin, or "random", got 0',
        ),
        ("niah_single_2", {"offsets": "some"}, r'or "random", got .some.'),
        ("niah_single_2", {"haystack": 3}, r"option haystack: expected a corpus's label, got 3"),
        ("qa_1", {"dataset": 3}, r"option dataset: expected a name that the package datasets loads, got 3"),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        facts(name, **options)


@pytest.mark.parametrize("lengths", [(), (0,), (-1, 4096)])
def test_a_task_without_lengths_is_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"RULER's vt needs lengths in tokens, such as 4096; got"):
        source.facts(TaskSpec(source="ruler", name="vt", lengths=lengths), SourceContext(tokenizer=Bytes(), seed=0))


def test_a_dataset_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        EnvironmentProblem, match=r"loading 'squad_v2' needs the package datasets: pip install datasets"
    ):
        facts("qa_1", dataset="squad_v2")
