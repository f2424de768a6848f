"""The command where libraries are missing, die or hang; what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run
from kvverify.conformance import verify as verify_module
from kvverify.conformance.verify import Plan, verify
from kvverify.events import CodecCompared, Event, KernelProbed, RunFinished, RunStarted, Verdict, reasons, verdict_of


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
