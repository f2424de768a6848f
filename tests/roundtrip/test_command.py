"""`kvverify roundtrip` and `replay` as a user meets them: exit codes, the one line that says what is wrong, failure files."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvverify.cli.main import run

EVIL = Path(__file__).with_name("evil.py")


def kvverify(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = run([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernel", "lmcash"], ["lmcash", "did you mean 'lmcache'"]),
        (["--kernel", "nowhere.py:Kernel"], ["nowhere.py"]),
        (["--model", "minimax-m2"], ["minimax-m2", "minimax-m2.5"]),
        (["--kv-cache-dtype", "turboquant_5bit"], ["turboquant_5bit", "turboquant_4bit_nc"]),
        (["--layout", "nowhere.json"], ["nowhere.json"]),
        (["--plant", "F99"], ["F99"]),
        (["--profile", "dve"], ["--profile 'dve'", "did you mean 'dev'"]),
        (["--budget", "soon"], ["--budget 'soon'", "60s"]),
        (["--budget", "0s"], ["--budget '0s'"]),
        (["--budget", "5s", "--examples", "5"], ["--examples and --budget"]),
        (["--device", "cuda"], ["--device cuda"]),
        (["--resume", "nowhere"], ["nowhere"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = kvverify(capsys, "roundtrip", *arguments)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("kvverify: ")
    for word in words:
        assert word in err
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_a_folder_that_cannot_be_written_ends_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = kvverify(capsys, "roundtrip", "--kernel", "torch", "--out", tmp_path / "file" / "run")
    assert code == 2
    assert "file" in err
    assert (tmp_path / "file").read_text() == "in the way"


def test_nothing_executed_is_exit_3(capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path) -> None:
    code, out, _ = kvverify(capsys, "roundtrip", "--kernel", "torch", "--examples", "0", "--out", tmp_path / "run")
    assert code == 3
    assert "INCONCLUSIVE" in out


def test_no_layout_that_the_kernel_takes_is_exit_3(
    capsys: pytest.CaptureFixture[str], vllm: ModuleType, tmp_path: Path
) -> None:
    arguments: list[str | Path] = ["--model", "llama-3.1-8b", "--examples", "8", "--out", tmp_path / "run"]
    code, out, _ = kvverify(capsys, "roundtrip", "--kernel", "vllm-triton", *arguments)
    assert code == 3
    assert "DMA" in out  # why it does not take pages of this size


def test_json_is_the_last_line(capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path) -> None:
    out_folder = tmp_path / "run"
    code, out, _ = kvverify(capsys, "roundtrip", "--kernel", "torch", "--examples", "16", "--json", "--out", out_folder)
    document: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert code == document["exit_code"] == 0
    assert document["sequences"] == 16
    assert document["compared_bytes"] > 0
    for name in ("events.ndjson", "run.json", "report.html", "report.md", "junit.xml"):
        assert (out_folder / name).stat().st_size > 0
    versions = json.loads((out_folder / "run.json").read_text())["versions"]
    assert {"kvverify", "python", "torch"} <= set(versions)


def test_a_run_is_never_overwritten(capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path) -> None:
    arguments: list[str | Path] = ["roundtrip", "--kernel", "torch", "--examples", "0", "--out", tmp_path / "run"]
    kvverify(capsys, *arguments)
    before = (tmp_path / "run" / "events.ndjson").read_bytes()
    code, _, err = kvverify(capsys, *arguments)
    assert code == 2
    assert "already holds a run" in err
    assert (tmp_path / "run" / "events.ndjson").read_bytes() == before


def test_resume_takes_no_other_options(capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path) -> None:
    kvverify(capsys, "roundtrip", "--kernel", "torch", "--examples", "0", "--out", tmp_path / "run")
    code, _, err = kvverify(capsys, "roundtrip", "--resume", tmp_path / "run", "--examples", "5")
    assert code == 2
    assert "leave out --examples" in err


def test_a_model_layout_is_verified(capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path) -> None:
    arguments: list[str | Path] = [
        "--model",
        "smollm2-135m",
        "--kv-cache-dtype",
        "turboquant_4bit_nc",
        "--examples",
        "4",
    ]
    code, out, _ = kvverify(capsys, "roundtrip", "--kernel", "torch", *arguments, "--out", tmp_path / "run")
    assert code == 0
    assert "bf16 + turboquant_4bit_nc" in out


def test_a_layout_file_is_what_the_layout_command_printed(
    capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path
) -> None:
    _, printed, _ = kvverify(capsys, "layout", "smollm2-135m", "--num-blocks", "3", "--json")
    (tmp_path / "layout.json").write_text(printed.splitlines()[-1])
    arguments: list[str | Path] = ["--layout", tmp_path / "layout.json", "--examples", "4", "--out", tmp_path / "run"]
    code, out, _ = kvverify(capsys, "roundtrip", "--kernel", "torch", *arguments)
    assert code == 0, out


def test_f04_names_the_field_that_was_cut_and_replays(
    capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path
) -> None:
    arguments: list[str | Path] = [
        "--kv-cache-dtype",
        "turboquant_4bit_nc",
        "--examples",
        "16",
        "--seed",
        "1",
        "--out",
        tmp_path / "run",
    ]
    code, out, _ = kvverify(capsys, "roundtrip", "--kernel", "torch", "--plant", "F04", *arguments)
    assert code == 1
    assert "v_scale, v_min" in out
    assert "cut off" in out
    failure = min((tmp_path / "run" / "failures").iterdir())
    code, out, _ = kvverify(capsys, "replay", failure, "--json")
    assert code == 1
    document = json.loads(out.splitlines()[-1])
    assert document["kind"] == "wrong-bytes"
    assert "v_min" in document["headline"]
    code, out, _ = kvverify(capsys, "replay", failure, "--kernel", "torch")
    assert code == 0
    assert "does not fail any more" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"format_version": 99}', "format version 99"),
        ('{"format_version": 1}', "incomplete or damaged"),
        ("[]", "format version None"),
    ],
)
def test_a_damaged_failure_file_is_named_and_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "failure.json"
    path.write_text(text)
    code, _, err = kvverify(capsys, "replay", path)
    assert code == 2
    assert words in err
    assert str(path) in err
    assert path.read_text() == text


def test_a_failure_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = kvverify(capsys, "replay", tmp_path / "gone.json")
    assert code == 2
    assert "gone.json" in err


def test_a_kernel_that_raises_ends_with_exit_1_and_the_command_that_replays_it(
    capsys: pytest.CaptureFixture[str], torch: ModuleType, tmp_path: Path
) -> None:
    arguments: list[str | Path] = ["--kernel", f"{EVIL}:Raises", "--examples", "16", "--out", tmp_path / "run"]
    code, out, _ = kvverify(capsys, "roundtrip", *arguments)
    assert code == 1
    assert "the copy engine is on fire" in out
    assert any(line.strip().startswith("kvverify replay ") for line in out.splitlines())
