"""The command where libraries are missing, die or hang; what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run
from kvverify.conformance import verify as verify_module
from kvverify.conformance.verify import Plan, verify
from kvverify.events import CodecCompared, Event, KernelProbed, RunFinished, RunStarted, Verdict
from kvverify.report.log import read_events
from kvverify.verdicts import reasons, verdict_of
from tests.run_folder import write


def broken(tmp_path: Path, package: str, text: str) -> dict[str, str]:
    folder = tmp_path / "path" / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")])}


def test_without_vllm_the_exit_code_is_3(tmp_path: Path, torch: Any) -> None:
    environment = {**os.environ, **broken(tmp_path, "vllm", "raise ImportError('not installed')")}
    out = tmp_path / "run"
    command = [sys.executable, "-m", "kvverify", "codecs", "verify", "--library", "vllm", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    document = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == document["exit_code"] == 3, done.stdout + done.stderr
    assert document["verdict"] == "INCONCLUSIVE"
    assert "vllm did not run" in done.stdout
    assert (out / "report.html").is_file()


def test_a_library_that_kills_the_process_did_not_run(tmp_path: Path, torch: Any) -> None:
    environment = broken(tmp_path, "vllm", "import os; os.kill(os.getpid(), 9)")
    events: list[Event] = []
    plan = Plan(presets=("turboquant_4bit_nc",), head_sizes=(64,), libraries=("vllm",), environment=environment)
    verify(plan, events.append)
    assert [type(e) for e in events] == [KernelProbed]
    assert verdict_of([*started(), *events, RunFinished(seconds=1.0)]) is Verdict.INCONCLUSIVE


def test_a_kernel_that_hangs_or_dies_after_its_start_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "SILENCE_S", 3.0)
    probe = json.dumps({"probe": {"available": True, "reason": "", "provenance": {}}})
    for code, word in (
        ("import time; time.sleep(60)", "no answer"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
    ):
        script = tmp_path / "child.py"
        script.write_text(f"print({probe!r}, flush=True)\n{code}\n")
        monkeypatch.setattr(verify_module, "CHILD", [str(script)])
        events: list[Event] = []
        verify(Plan(presets=("turboquant_4bit_nc",), libraries=("vllm",)), events.append)
        assert verdict_of([*started(), *events, RunFinished(seconds=1.0)]) is Verdict.FAIL
        assert word in reasons(events)[0].text


def all_comparisons(folder: Path) -> dict[str, tuple[int, str]]:
    """Return what was compared, without times; each comparison must be there once."""
    made = [e for e in read_events(folder) if isinstance(e, CodecCompared)]
    found = {f"{e.library} {e.format} {e.head_size} {e.what}": (e.compared_bytes, e.headline) for e in made}
    assert len(found) == len(made)
    return found


def cut(folder: Path, where: Path, comparisons: int) -> bytes:
    """Copy a run as a kill after some comparisons leaves it, in the middle of the next line; return what is whole of its log."""
    shutil.copytree(folder, where)
    log = where / "events.ndjson"
    lines = log.read_bytes().splitlines(keepends=True)
    numbers = [i for i, line in enumerate(lines) if json.loads(line)["event"] == "CodecCompared"]
    whole = b"".join(lines[: numbers[comparisons]])
    log.write_bytes(whole + lines[numbers[comparisons]][:40])
    return whole


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_comparisons(
    vllm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    options = ["--library", "vllm", "--preset", "turboquant_4bit_nc", "--preset", "turboquant_k8v4"]
    assert run(["codecs", "verify", *options, "--head-size", "64", "--seed", "7", "--out", str(whole)]) == 0
    expected = all_comparisons(whole)
    assert len(expected) == 3 + 5
    killed = tmp_path / "killed"
    before = cut(whole, killed, 5)
    assert run(["codecs", "verify", "--resume", str(killed), "--json"]) == 0
    assert (killed / "events.ndjson").read_bytes().startswith(before)
    assert all_comparisons(killed) == expected
    starts = [e for e in read_events(killed) if isinstance(e, RunStarted)]
    assert [(e.seed, e.resumed) for e in starts] == [(7, False), (7, True)]
    assert starts[0].options == starts[1].options
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["verdict"], len(document["comparisons"])) == ("PASS", len(expected))


def half_done(folder: Path, *events: Event, command: str = "codecs verify") -> Path:
    """Make the folder of a run of one preset that was killed."""
    options = {
        "presets": ["turboquant_4bit_nc"],
        "head_sizes": [64],
        "libraries": ["vllm"],
        "named": ["vllm"],
        "device": "cpu",
    }
    return write(folder, [RunStarted(command=command, version="0", seed=7, options=options), *events])


def test_a_resumed_run_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = {"probe": {"available": True, "reason": "", "provenance": {}}}
    script = tmp_path / "child.py"
    script.write_text(f"import sys\nopen({str(tmp_path / 'asked')!r}, 'w').write(sys.argv[1])\n")
    with script.open("a") as file:
        file.write(f"print({json.dumps(probe)!r})\nprint({json.dumps({'done': True})!r})\n")
    monkeypatch.setattr(verify_module, "CHILD", [str(script)])
    found = KernelProbed(kernel="vllm", available=True)
    folder = half_done(tmp_path / "wrong", found, compared(different_bytes=1, headline="field k_norm: wrong"))
    assert run(["codecs", "verify", "--resume", str(folder)]) == 1
    assert "field k_norm: wrong" in capsys.readouterr().out
    request = json.loads((tmp_path / "asked").read_text())
    assert request["done"] == [["turboquant_4bit_nc", 64, "store fp16"]]
    assert request["seed"] == 7
    (tmp_path / "asked").unlink()
    died = compared(what=verify_module.PROCESS, compared_bytes=0, head_size=0, headline="died")
    assert run(["codecs", "verify", "--resume", str(half_done(tmp_path / "died", found, died))]) == 1
    assert not (tmp_path / "asked").exists()  # that the library died is its result


def test_a_library_that_compares_nothing_is_exit_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [{"probe": {"available": True, "reason": "", "provenance": {}}}, {"done": True}]
    script = tmp_path / "child.py"
    script.write_text("".join(f"print({json.dumps(message)!r})\n" for message in messages))
    monkeypatch.setattr(verify_module, "CHILD", [str(script)])
    assert run(["codecs", "verify", "--library", "vllm", "--out", str(tmp_path / "run")]) == 3
    assert "INCONCLUSIVE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--head-size", "64", "--preset", "turboquant_4bit_nc"], "leave out --head-size, --preset"),
        (["--device", "cpu"], "leave out --device"),
        (["--seed", "1", "--library", "vllm"], "leave out --library, --seed"),
    ],
)
def test_resume_takes_no_other_options(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = half_done(tmp_path / "run")
    before = (folder / "events.ndjson").read_bytes()
    assert run(["codecs", "verify", "--resume", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert (folder / "events.ndjson").read_bytes() == before


def test_a_run_of_another_command_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = half_done(tmp_path / "run", command="selftest")
    assert run(["codecs", "verify", "--resume", str(folder)]) == 2
    assert "holds a run of selftest; expected one of codecs verify" in capsys.readouterr().err


def started() -> list[Event]:
    return [RunStarted(command="codecs verify", version="0", seed=0, options={})]


def compared(**changes: Any) -> CodecCompared:
    values: dict[str, Any] = {
        "library": "vllm",
        "format": "turboquant_4bit_nc",
        "head_size": 64,
        "what": "store fp16",
        "compared_bytes": 100,
        "different_bytes": 0,
    }
    return CodecCompared(**{**values, **changes})


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([compared()], Verdict.PASS),
        ([compared(near_midpoint=3)], Verdict.PASS),
        ([compared(different_bytes=1)], Verdict.FAIL),
        ([compared(headline="accepts preset 'x'")], Verdict.FAIL),
        ([compared(compared_bytes=0)], Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_follows_from_the_comparisons(events: list[Event], verdict: Verdict) -> None:
    probe = KernelProbed(kernel="vllm", available=True)
    log = [*started(), probe, *events, RunFinished(seconds=1.0)]
    assert verdict_of(log) is verdict


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "turboquant_4bit"], "--preset: no 'turboquant_4bit'; did you mean 'turboquant_4bit_nc'"),
        (["--library", "vlm"], "--library: no 'vlm'; did you mean 'vllm'"),
        (["--head-size", "96"], "head size 96"),
        (["--preset", "turboquant_k8v4", "--head-size", "96"], "powers of two"),
    ],
)
def test_bad_options_are_one_line_and_exit_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["codecs", "verify", "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()
