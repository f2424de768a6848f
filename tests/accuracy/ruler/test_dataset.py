"""Samples on disk: read back they are the same, without tokenizing; damage is noted and mended."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from kvverify.accuracy.tokens import Bytes
from kvverify.errors import EnvironmentProblem
from tests.accuracy.ruler.ingredients import context, made


class Counting(Bytes):
    """Counts the characters that it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def counts(self, texts: Sequence[str]) -> list[int]:
        self.asked += sum(map(len, texts))
        return super().counts(texts)


TASKS = ["niah_single_1", "niah_single_2", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe"]


@pytest.mark.parametrize("name", TASKS)
def test_kept_samples_read_back_are_the_same_and_their_size_is_not_searched_again(name: str, tmp_path: Path) -> None:
    # lm-eval makes all samples again in every run: 19 to 1,613 ms each
    first, again = Counting(), Counting()
    samples = made(name, 8192, context(first, cache=tmp_path), samples=9)
    assert made(name, 8192, context(again, cache=tmp_path), samples=9) == samples
    assert again.asked < first.asked
    assert made(name, 8192, context(cache=None), samples=9) == samples


def test_more_samples_go_on_where_fewer_ended(tmp_path: Path) -> None:
    few = made("vt", 4096, context(cache=tmp_path), samples=2)
    many = made("vt", 4096, context(cache=tmp_path), samples=5)
    assert many[:2] == few
    assert made("vt", 4096, context(cache=tmp_path), samples=3) == many[:3]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_samples_are_made_of_decides_the_file(tmp_path: Path) -> None:
    for seed, reserve, length in ((1, 1, 4096), (2, 1, 4096), (1, 2, 4096), (1, 1, 5000)):
        made("vt", length, context(seed=seed, reserve=reserve, cache=tmp_path), samples=1)
    made("niah_single_2", 4096, context(cache=tmp_path), samples=1)
    made("niah_single_2", 4096, context(cache=tmp_path), samples=1, offsets=2)
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[:-9], "its checksum is wrong"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "of another format"),
        (lambda text: "{" + text, "Expecting property name"),
        (lambda text: "", "Expecting value"),
    ],
)
def test_a_damaged_file_is_noted_and_made_anew(
    damage: object, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = made("vt", 4096, context(cache=tmp_path))
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    assert callable(damage)
    file.write_text(damage(whole))
    with caplog.at_level(logging.WARNING):
        assert made("vt", 4096, context(cache=tmp_path)) == samples
    assert why in caplog.text
    assert "its samples are made anew" in caplog.text
    assert file.read_text() == whole


def test_a_receipt_of_another_text_is_noted_and_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import hashlib

    samples = made("vt", 4096, context(cache=tmp_path))
    (file,) = tmp_path.iterdir()
    head, *lines = file.read_text().splitlines()
    lines[1] = json.dumps([1, json.loads(lines[1])[1] - 1, *json.loads(lines[1])[2:]])
    body = "".join(f"{line}\n" for line in lines)
    told = {**json.loads(head), "sha256": hashlib.sha256(body.encode()).hexdigest()}
    file.write_text(f"{json.dumps(told)}\n{body}")
    with caplog.at_level(logging.WARNING):
        assert made("vt", 4096, context(cache=tmp_path)) == samples
    assert "sample 1 is another one now" in caplog.text


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="file is in the way"):
        made("vt", 4096, context(cache=tmp_path / "file" / "cache"))
