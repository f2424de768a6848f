"""Tokenizers: found or refused with one line, one start token, nothing cut."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from kvverify.accuracy.tokens import Bytes, FromFile, load_tokenizer
from kvverify.errors import EnvironmentProblem, UsageError


def write(folder: Path, *, start: bool = False, end: bool = False, **config: Any) -> Path:
    """Write a tokenizer of single words; ``start`` and ``end`` put <s> and </s> around a text."""
    names = ["<s>", "</s>", "<unk>", "a", "b", "c"]
    made: Any = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if start or end:
        single = f"{'<s> ' * start}$A{' </s>' * end}"
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0), ("</s>", 1)])
    made.enable_truncation(2)
    made.enable_padding(length=8, pad_id=2, pad_token="<unk>")
    made.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_and_its_file_are_the_same_tokenizer(tmp_path: Path) -> None:
    folder = load_tokenizer(str(write(tmp_path)))
    assert folder.identity == load_tokenizer(str(tmp_path / "tokenizer.json")).identity
    assert len(folder.identity) == 64


def test_nothing_is_truncated_or_padded_whatever_the_file_says(tmp_path: Path) -> None:
    # lm-eval's client cut a prompt of 4,005 tokens to 1,919 without a line in the log
    tokens = load_tokenizer(str(write(tmp_path)))
    assert tokens.ids("a b c a b c") == [3, 4, 5, 3, 4, 5]
    assert tokens.counts(["a b c a b c", "a", ""]) == [6, 1, 0]


@pytest.mark.parametrize(
    ("start", "config", "expected"),
    [
        (True, {}, [0]),
        (False, {}, []),
        (True, {"add_bos_token": False, "bos_token": "<s>"}, []),
        (False, {"add_bos_token": True, "bos_token": "<s>"}, [0]),
        (False, {"add_bos_token": True, "bos_token": {"content": "<s>"}}, [0]),
        (True, {"add_bos_token": True, "bos_token": "<s>"}, [0]),
    ],
)
def test_the_start_token_comes_once_from_processor_or_settings(
    tmp_path: Path, *, start: bool, config: dict[str, Any], expected: list[int]
) -> None:
    tokens = FromFile(write(tmp_path, start=start, **config) / "tokenizer.json")
    assert tokens.start_ids == expected
    assert tokens.ids("a b", start=True) == [*expected, 3, 4]
    assert tokens.ids("a b") == [3, 4]


def test_an_end_token_is_not_put_behind_a_prompt(tmp_path: Path) -> None:
    tokens = load_tokenizer(str(write(tmp_path, start=True, end=True)))
    assert tokens.ids("a b", start=True) == [0, 3, 4]


def test_the_start_belongs_to_the_identity(tmp_path: Path) -> None:
    plain = load_tokenizer(str(write(tmp_path))).identity
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "<s>"}')
    assert load_tokenizer(str(tmp_path)).identity != plain


@given(text=st.text(max_size=40))
def test_the_labs_tokens_are_bytes(text: str) -> None:
    tokens = load_tokenizer("bytes")
    assert tokens.ids(text, start=True) == list(text.encode())
    assert tokens.counts([text, ""]) == [len(text.encode()), 0]
    assert isinstance(tokens, Bytes)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (
            "nowhere",
            "no tokenizer 'nowhere': expected a folder with tokenizer.json, such a file, a hub id (owner/name), ",
        ),
        ("./a/b", "no tokenizer './a/b': expected a folder with tokenizer.json"),
        ("", "no tokenizer in .: expected tokenizer.json, found no file of a tokenizer; AutoTokenizer.from_pretrained"),
    ],
)
def test_what_is_not_found_is_one_line(where: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_tokenizer(where or ".")
    assert str(caught.value).startswith(line)


def test_a_folder_with_another_form_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"expected tokenizer\.json, found tokenizer\.model; AutoTokenizer"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", b"[1, 2]"])
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json is no tokenizer of the tokenizers package: "):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "line"), [("[]", "expected a JSON object, got list"), ("{", "expected the JSON ob")]
)
def test_settings_that_cannot_be_read_are_refused(content: str, line: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UsageError, match=rf"tokenizer_config\.json: {line}"):
        load_tokenizer(str(tmp_path))


def test_without_the_package_the_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EnvironmentProblem, match=r"needs the package tokenizers: pip install 'kvverify\[accuracy\]'"):
        load_tokenizer(str(tmp_path))


def test_a_hub_id_offline_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem) as caught:
        load_tokenizer("nobody/nothing")
    assert str(caught.value) == (
        "no folder 'nobody/nothing' here, and the hub did not answer for it: give the model's folder with tokenizer.json "
        "(--tokenizer FOLDER)"
    )
