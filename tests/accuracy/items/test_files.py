from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvverify.accuracy.items import source
from kvverify.accuracy.items.lines import read_lines
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.accuracy.tokens import Bytes
from kvverify.errors import UsageError
from kvverify.evals_data import shipped
from kvverify.event_json import to_json
from kvverify.events_accuracy import SampleAnswered
from tests.accuracy.items.drawing import RESERVE, draw

LINE = {"prompt": "2 + 2?", "references": ["4"], "metric": "number", "max_tokens": 8}
CONTEXT = SourceContext(tokenizer=Bytes(), seed=0)


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def facts(name: Path | str, **options: Any) -> dict[str, str]:
    return source.facts(TaskSpec(source="items", name=str(name), options=options), CONTEXT)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    chat = {
        **LINE,
        "prompt": "",
        "messages": [{"role": "user", "content": "2 + 3?"}],
        "references": ["5"],
        "cluster": "sums",
    }
    file = write(tmp_path / "mine.jsonl", LINE, "", chat)
    one, two = draw(file, samples=0)
    assert (one.task, one.index, one.prompt, one.references, one.tokens) == ("mine", 0, "2 + 2?", ("4",), 6 + RESERVE)
    assert (two.index, two.messages[0]["content"], two.cluster, two.tokens) == (1, "2 + 3?", "sums", -1)
    assert facts(file) == {"questions": hashlib.sha256(file.read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"metric": "numbr"}, "metric 'numbr': no such rule; did you mean 'number'"),
        ({"references": []}, "metric number needs references"),
        ({"prompt": ""}, "expected prompt or messages, one of them"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than 0"),
        ({"answer": "4"}, "answer: Extra inputs are not permitted"),
        ({"metric": "sql"}, "metric sql needs details.setup"),
        ({"metric": "code", "details": {"function": "f"}}, "metric code needs details.cases or details.tests"),
        ({"metric": "json-fields"}, ""),
        ({"metric": "json-fields", "references": ["{"]}, "Expecting property name"),
        ({"metric": "json-schema", "details": {"schema": {"type": 3}}}, "not a JSON schema: "),
        ({"metric": "rubrics", "details": {"rubrics": ["", 3]}}, "details.rubrics: expected a list of texts"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(tmp_path: Path, change: dict[str, Any], error: str) -> None:
    file = write(tmp_path / "wrong.jsonl", LINE, {**LINE, **change})
    if not error:
        assert len(read_lines(file)[0]) == 2
        return
    with pytest.raises(UsageError) as caught:
        read_lines(file)
    assert str(caught.value).startswith(f"questions {file}, line 2: ")
    assert error in str(caught.value)


def test_what_is_no_file_of_questions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 1: Invalid JSON"):
        read_lines(write(tmp_path / "a.jsonl", "{"))
    with pytest.raises(UsageError, match=r"a\.jsonl: empty; expected one JSON object a line$"):
        read_lines(write(tmp_path / "a.jsonl", ""))
    (tmp_path / "b.jsonl").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"b\.jsonl: 'utf-8' codec can't decode"):
        read_lines(tmp_path / "b.jsonl")
    with pytest.raises(
        UsageError,
        match=r"^task 'invoice-jsn' of source items: no such file, generator or shipped set; did you mean 'invoice-json'",
    ):
        draw("invoice-jsn")


def test_tasks_that_are_asked_wrongly(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", LINE)
    with pytest.raises(
        UsageError,
        match=r": 2 samples asked, mine\.jsonl has 1 questions; ask for fewer, or leave samples out for all$",
    ):
        draw(file, samples=2)
    with pytest.raises(UsageError, match=r"has no size classes, got lengths \[4096\]; leave them out$"):
        draw(file, length=4096)
    with pytest.raises(
        UsageError, match=r"^task long-table needs lengths in tokens, got \[0\]; for example lengths = \[4096\]$"
    ):
        draw("long-table")
    with pytest.raises(UsageError, match=r"^task invoice-json: no option 'subset'; it takes none$"):
        draw("invoice-json", options={"subset": {}})
    with pytest.raises(UsageError, match=r"no option 'subst'; did you mean 'subset'"):
        draw(file, options={"subst": {}})


@pytest.mark.parametrize("name", sorted(path.stem for path in shipped("items").glob("*.jsonl")))
def test_the_shipped_files_are_right_and_no_question_stands_there_twice(name: str) -> None:
    lines, _ = read_lines(shipped("items") / f"{name}.jsonl")
    assert len({(line.prompt, str(line.messages)) for line in lines}) == len(lines)
    assert len({line.id for line in lines}) == len(lines)


def test_no_harmless_request_holds_what_shows_that_it_was_answered() -> None:
    """An answer that only repeats the request is none."""
    for line in read_lines(shipped("items") / "harmless.jsonl")[0]:
        assert [word for word in line.references if word.casefold() in line.prompt.casefold()] == []
        assert line.metric == "answered"


def test_a_subset_by_baseline_score_is_chosen_and_recorded(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", *({**LINE, "prompt": f"{n} + 2?"} for n in range(6)))
    run = tmp_path / "run"
    run.mkdir()
    answers = (
        SampleAnswered(
            task="mine",
            length=0,
            index=sample.index,
            key=sample.key,
            cluster="",
            score=sample.index / 5,
            error="no answer" if sample.index == 5 else "",
        )
        for sample in draw(file, samples=0)
    )
    (run / "events.ndjson").write_text("".join(f"{json.dumps(to_json(answer))}\n" for answer in answers))
    subset = {"run": str(run), "at_least": 0.5}
    assert [sample.index for sample in draw(file, samples=0, options={"subset": subset})] == [3, 4]
    digest = hashlib.sha256((run / "events.ndjson").read_bytes()).hexdigest()[:16]
    assert facts(file, subset=subset)["subset"] == f"baseline score 0.5 to 1 in the run with log {digest}"
    with pytest.raises(UsageError, match=r"no question of mine\.jsonl is in the subset: baseline score 0\.99 to 1 in"):
        draw(file, options={"subset": {"run": str(run), "at_least": 0.99}})
    with pytest.raises(
        UsageError, match=r"subset\.run: no event log in .*nowhere; expected the folder of an accuracy run$"
    ):
        draw(file, options={"subset": {"run": str(tmp_path / "nowhere")}})
    with pytest.raises(UsageError, match=r"subset\.at_least: Input should be less than or equal to 1"):
        draw(file, options={"subset": {"run": str(run), "at_least": 50}})


def test_facts_of_generators_name_version_seed_options_and_the_file_behind_them() -> None:
    assert facts("invoice-json") == {"generator": "invoice-json 1", "seed": "0"}
    assert facts("code-functions", allow_code=True)["options"] == '{"allow_code": true}'
    file = shipped("items") / "refusals.jsonl"
    assert facts("must-refuse")["requests"] == hashlib.sha256(file.read_bytes()).hexdigest()
