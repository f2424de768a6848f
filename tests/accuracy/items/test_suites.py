from __future__ import annotations

import pytest

from kvverify.accuracy.items import source
from kvverify.accuracy.scoring import JUDGED, score
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.accuracy.suite import load_suite
from kvverify.accuracy.tokens import Bytes
from kvverify.evals_data import shipped
from tests.accuracy.items.drawing import perfect

TASKS = [
    pytest.param(task, id=f"{path.stem}-{task.name}")
    for path in sorted(shipped("suites").glob("*.toml"))
    for task in load_suite(path.stem).tasks
    if task.source == "items"
]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_of_the_shipped_suites_has_as_many_different_samples_as_it_asks_for(task: TaskSpec) -> None:
    samples = list(source.samples(task, SourceContext(tokenizer=Bytes(), seed=0, reserve=20)))
    assert len({sample.key for sample in samples}) == len(samples) >= task.samples * len(task.lengths)
    first = samples[0]
    assert first.metric in JUDGED or score(first, perfect(first)).value == 1.0
    assert all(s.tokens + s.max_tokens <= s.length for s in samples if s.length)


def test_suites_say_of_which_kind_they_are() -> None:
    kinds = {name: load_suite(name).kind for name in ("short-regression", "business-formats", "edge-and-safety")}
    assert kinds == {"short-regression": "short", "business-formats": "business", "edge-and-safety": "safety"}
    assert load_suite("low-temperature").temperature == 0.1
