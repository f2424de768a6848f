"""The benchmark of RULER's samples: it makes all thirteen tasks, and can miss its bar."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from bench import ruler
from kvverify.accuracy.ruler.tasks import TASKS


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
