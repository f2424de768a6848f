"""The sign-off in results/: as signed off, made by the command that results/README.md shows, and what its logs say today."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run

ROOT = Path(__file__).parents[2]
SIGNED = ROOT / "results" / "signoff"
AGAIN = "make it again: remove results/signoff and run the command in results/README.md"


def command() -> list[str]:
    """Return the words of the command that made it."""
    (line,) = re.findall(
        r"`kvverify (report [^`]+ --out results/signoff)`", (ROOT / "results" / "README.md").read_text()
    )
    return shlex.split(line)


def said(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a sign-off decides, and of which bytes: not when it was made, and not in which words."""
    return {
        "verdict": document["verdict"],
        "runs": {run["run"]: (run["verdict"], run["events_sha256"]) for run in document["runs"]},
        "questions": [(q["number"], q["verdict"]) for q in document["questions"]],
        "policy": (
            document["policy"]["sha256"],
            [(r["name"], r["verdict"]) for r in document["policy"]["requirements"]],
        ),
        "checks": {name: check["verdict"] for name, check in document["checks"].items()},
        "failures": [(d["run"], d["title"], d["replay"]) for d in document["failures"]],
    }


def test_it_is_as_signed_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify-report", str(SIGNED)]) == 0, f"{capsys.readouterr().out}{AGAIN}"


def test_its_command_says_the_same_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts and digests, not words: the page may read better today, the day it was made stands on it."""
    monkeypatch.chdir(ROOT)
    words = command()
    assert (
        run([*words[:-1], str(tmp_path / "signoff")]) == 1
    )  # findings in third-party code, and what 4 bits cost there
    made, kept = (json.loads((folder / "signoff.json").read_text()) for folder in (tmp_path / "signoff", SIGNED))
    assert said(made) == said(kept), AGAIN


def test_one_changed_byte_of_any_of_its_logs_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [Path(word) for word in command() if word.startswith("results/") and "signoff" not in word]
    assert len(runs) == 13
    for folder in (*runs, Path("results/signoff")):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    signed = str(tmp_path / "results" / "signoff")
    assert run(["verify-report", signed]) == 0
    for folder in runs:
        log = tmp_path / folder / "events.ndjson"
        before = log.read_bytes()
        log.write_bytes(before[:-3] + bytes([before[-3] ^ 1]) + before[-2:])
        capsys.readouterr()
        assert run(["verify-report", signed]) == 1
        assert f"FAIL: ../{folder.relative_to('results')}/events.ndjson: changed: " in capsys.readouterr().out
        log.write_bytes(before)
