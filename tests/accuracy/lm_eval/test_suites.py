"""Shipped suites over lm-eval's own tasks, on copies of the data sets' form with a few rows made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from kvverify.accuracy.source import SourceContext
from kvverify.accuracy.suite import load_suite
from tests.accuracy.lm_eval.own_task import Letters, samples_of, write_rows

GSM8K = [{"question": f"How much is {n} and {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(1, 8)]
HELLASWAG = [
    {
        "ind": n,
        "activity_label": "Cooking",
        "ctx_a": f"Somebody boils {n} eggs.",
        "ctx_b": "then they",
        "endings": [f"eat {n} eggs.", "sing [step] loudly.", "leave.", "wait."],
        "label": str(n % 4),
    }
    for n in range(6)
]
MMLU = [{"question": f"What is {n} + 1?", "choices": [str(n), str(n + 1), "0", "9"], "answer": 1} for n in range(2, 9)]


def made(suite: str, corpora: Path, tasks: int) -> list[Any]:
    """Return the samples of the first ``tasks`` tasks of a shipped suite."""
    context = SourceContext(tokenizer=Letters(), seed=0, corpora=corpora)
    return [sample for task in load_suite(suite).tasks[:tasks] for sample in samples_of(task, context)]


def test_gsm8k(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    for split in ("train", "test"):
        write_rows(tmp_path / "gsm8k" / f"{split}.jsonl", GSM8K)
    samples = made("gsm8k", tmp_path, 1)
    assert [sample.prompt.count("#### ") for sample in samples] == [5] * 7
    assert all(
        sample.prompt.endswith(f"Question: {row['question']}\nAnswer:")
        for sample, row in zip(samples, GSM8K, strict=True)
    )


def test_hellaswag(tmp_path: Path) -> None:
    (tmp_path / "hellaswag").mkdir()
    for split in ("train", "validation"):
        write_rows(tmp_path / "hellaswag" / f"{split}.jsonl", HELLASWAG)
    samples = made("hellaswag", tmp_path, 1)
    assert len(samples) == 6
    assert samples[2].details["choices"][1] == ["Cooking: Somebody boils 2 eggs. Then they", " sing loudly."]


def test_mmlu(tmp_path: Path) -> None:
    folder = tmp_path / "mmlu" / "abstract_algebra"
    folder.mkdir(parents=True)
    for split in ("test", "dev"):
        pa.parquet.write_table(pa.Table.from_pylist(MMLU), folder / f"{split}-00000-of-00001.parquet")
    suite = load_suite("mmlu")
    assert len(suite.tasks) == 57
    samples = made("mmlu", tmp_path, 1)
    assert len(samples) == 7
    context, letter = samples[0].details["choices"][3]
    assert context.endswith("What is 2 + 1?\nA. 2\nB. 3\nC. 0\nD. 9\nAnswer:")
    assert context.count("Answer: B\n\n") == 5
    assert letter == " D"


def test_a_missing_copy_is_named(tmp_path: Path) -> None:
    from kvverify.errors import UsageError

    with pytest.raises(
        UsageError, match=r"task gsm8k: no file gsm8k/train.jsonl in .*; put it there: kvverify downloads nothing"
    ):
        made("gsm8k", tmp_path, 1)
