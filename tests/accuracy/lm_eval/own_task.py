"""Task ``sums``: a task file of a user's own, and what its tests are counted with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec

ROWS = [
    {"question": f"What is {n} plus {n + 1}?", "answer": f"{2 * n + 1}", "topic": f"t{n % 3}"} for n in range(1, 41)
]
PLAIN: dict[str, Any] = {
    "task": "sums",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "test.jsonl", "train": "train.jsonl"}},
    "test_split": "test",
    "fewshot_split": "train",
    "output_type": "generate_until",
    "num_fewshot": 2,
    "doc_to_text": "Q: {{question}}\nA:",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["Q:", "\n"], "do_sample": False, "max_gen_toks": 12},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "filter_list": [
        {"name": "first", "filter": [{"function": "regex", "regex_pattern": "(-?[0-9]+)"}, {"function": "take_first"}]},
        {
            "name": "last",
            "filter": [
                {"function": "regex", "regex_pattern": "(-?[0-9]+)", "group_select": -1},
                {"function": "take_first"},
            ],
        },
    ],
    "metadata": {"version": 2.0},
}


class Letters:
    """A tokenizer whose tokens are characters, after one that starts a prompt."""

    identity = "letters"

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        return [*([1] if start else []), *(ord(c) for c in text)]

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


MakeTask = Callable[..., TaskSpec]


def yaml_of(config: dict[str, Any]) -> str:
    """Return a task file; a value that begins with !function is one."""
    lines = []
    for key, value in config.items():
        code = isinstance(value, str) and value.startswith("!function")
        lines.append(f"{key}: {value if code else json.dumps(value)}\n")
    return "".join(lines)


def samples_of(spec: TaskSpec, context: SourceContext) -> list[Sample]:
    """Return all samples of ``spec``."""
    from kvverify.accuracy.lm_eval import source

    return list(source.samples(spec, context))
