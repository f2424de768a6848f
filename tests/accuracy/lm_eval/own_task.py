"""Task ``sums``: a task file of a user's own, and what its tests are counted with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvverify.accuracy.lm_eval.package import lm_eval_module
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


def figures_of_lm_eval(include: str, name: str, **kinds: Callable[[list[Any]], list[Any]]) -> dict[str, float]:
    """Let lm-eval itself run a task and return its figures.

    Args:
        include: folder of the task file.
        name: of the task.
        kinds: how the model answers each kind of request, such as ``generate_until``, from the arguments of all of them.
    """
    base: type[Any] = lm_eval_module("lm_eval.api.model").LM

    def answer(kind: str) -> Callable[..., list[Any]]:
        return lambda _self, requests, disable_tqdm=False: kinds[kind]([request.args for request in requests])

    methods = {kind: answer(kind) for kind in ("generate_until", "loglikelihood", "loglikelihood_rolling")}
    manager = lm_eval_module("lm_eval.tasks").TaskManager(include_path=include, include_defaults=False)
    results: dict[str, float] = lm_eval_module("lm_eval").simple_evaluate(
        model=type("Model", (base,), methods)(),
        tasks=[name],
        task_manager=manager,
        bootstrap_iters=0,
        log_samples=False,
    )["results"][name]
    return results
