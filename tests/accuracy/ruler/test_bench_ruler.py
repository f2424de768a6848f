"""The benchmark of RULER's samples: it makes all thirteen tasks, and can miss its bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from bench import ruler
from kvverify.accuracy.ruler.tasks import TASKS
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.accuracy.suite import load_suite


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ruler", *arguments])
    return ruler.main()


def test_all_tasks_are_made_and_without_a_bar_none_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--lengths", "4096", "--samples", "2") == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [m["name"] for m in document["measures"][:-1]] == [f"{name}, 2 samples at 4096" for name in TASKS]
    assert all(m["value"] > 0 and m["ok"] is None for m in document["measures"])


@pytest.mark.parametrize(("bar", "code"), [(0.0, 1), (600.0, 0)])
def test_a_bar_can_be_missed_and_met(bar: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruler, "BARS", {4096: bar})
    monkeypatch.setattr(ruler, "SAMPLES", 2)
    assert run(monkeypatch, "--lengths", "4096", "--samples", "2") == code


def test_what_is_measured_is_what_suites_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Mapping[str, Any]] = []

    def samples(task: TaskSpec, _context: SourceContext) -> Iterator[Sample]:
        asked.append(task.options)
        yield Sample(task=task.name, length=1, index=0, metric="m", max_tokens=1, tokens=1)

    monkeypatch.setattr("kvverify.accuracy.ruler.source.samples", samples)
    assert run(monkeypatch, "--lengths", "4096", "--samples", "2", "--tasks", "niah_single_2,vt") == 0
    assert asked == [{"offsets": "random"}, {}]
    assert {n: load_suite(f"ruler-{n}k").tasks[1].options for n in (4, 128)} == {4: asked[0], 128: asked[0]}
