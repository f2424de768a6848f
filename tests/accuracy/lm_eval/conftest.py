"""Tasks in files of their own, as a user would write them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kvverify.accuracy.source import SourceContext, TaskSpec
from tests.accuracy.lm_eval.own_task import PLAIN, ROWS, Letters, MakeTask, write_rows, yaml_of

_NEEDED = ("lm_eval", "datasets", "openai", "httpx2", "tokenizers")
# lm_eval is looked for and not imported: kvverify's own import sets what keeps it off the network
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in _NEEDED) else ["test_*.py"]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Write task ``sums`` with ``changes`` (None: without the key) and two splits beside it; return what a suite says of it."""

    def make(
        *, options: dict[str, Any] | None = None, rows: list[dict[str, Any]] = ROWS, code: str = "", **changes: Any
    ) -> TaskSpec:
        config = {key: value for key, value in {**PLAIN, **changes}.items() if value is not None}
        folder = tmp_path / "tasks"
        folder.mkdir(exist_ok=True)
        (folder / f"{config['task']}.yaml").write_text(yaml_of(config))
        (folder / "own_code.py").write_text(code)
        write_rows(folder / "test.jsonl", rows)
        write_rows(folder / "train.jsonl", [{**row, "question": f"Once more: {row['question']}"} for row in ROWS])
        return TaskSpec(source="lm-eval", name=config["task"], options={"include": str(folder), **(options or {})})

    return make


@pytest.fixture
def context() -> SourceContext:
    return SourceContext(tokenizer=Letters(), seed=7, reserve=3)
