"""Question sets that the package datasets saved: the same questions as their JSON files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("datasets")
pytest.importorskip("tokenizers")

import datasets

from kvverify.accuracy.question_corpora import hotpotqa, squad
from kvverify.errors import UsageError
from tests.accuracy.ruler import ingredients


def test_a_saved_squad_has_the_questions_of_its_file(tmp_path: Path) -> None:
    data = ingredients.squad_stand_in()
    ingredients.write_corpus(tmp_path, "squad", data, "mine")
    rows = [
        {
            "title": article["title"],
            "context": paragraph["context"],
            "question": asked["question"],
            "answers": {"text": [] if asked["is_impossible"] else [a["text"] for a in asked["answers"]]},
        }
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]
    datasets.DatasetDict({"validation": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "saved")
    of_file, of_rows = squad(tmp_path), squad(tmp_path, str(tmp_path / "saved"))
    assert (of_rows.documents, of_rows.items) == (of_file.documents, of_file.items)
    assert of_rows.label == f"datasets:{tmp_path / 'saved'}"
    assert of_rows.sha256 != of_file.sha256


def test_a_saved_hotpotqa_has_the_questions_of_its_file(tmp_path: Path) -> None:
    data = ingredients.hotpotqa_stand_in()
    ingredients.write_corpus(tmp_path, "hotpotqa", data, "mine")
    rows = [
        {
            "question": q["question"],
            "answer": q["answer"],
            "context": {"title": [t for t, _ in q["context"]], "sentences": [s for _, s in q["context"]]},
            "supporting_facts": {
                "title": [t for t, _ in q["supporting_facts"]],
                "sent_id": [n for _, n in q["supporting_facts"]],
            },
        }
        for q in data
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    of_file, of_rows = hotpotqa(tmp_path), hotpotqa(tmp_path, str(tmp_path / "saved"))
    assert (of_rows.documents, of_rows.items) == (of_file.documents, of_file.items)


def test_a_folder_that_datasets_did_not_save_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"datasets cannot load validation of '.*': .*; give a folder that it saved"):
        squad(None, str(tmp_path))
