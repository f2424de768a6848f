"""``--resume``: what every command that has it refuses, in one line and without a change to the folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run
from kvverify.events import Event, RunFinished, RunStarted
from tests.run_folder import write

COMMANDS = ["roundtrip", "selftest", "codecs verify"]
if all(find_spec(name) for name in ("openai", "httpx2", "prometheus_client", "pydantic")):
    COMMANDS += ["tier-diff", "isolation", "accuracy run"]
if find_spec("scipy"):
    COMMANDS.append("accuracy compare")


def started(command: str, **options: Any) -> RunStarted:
    return RunStarted(command=command, version="0", seed=0, options=options)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("event", "says"),
    [
        (started("doctor"), "holds a run of doctor; expected one of {command}"),
        (RunFinished(seconds=1.0), "holds no run; expected one of {command}"),
    ],
)
def test_what_is_no_run_of_the_command_is_refused(
    command: str, event: Event, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "run", [event])
    before = (folder / "events.ndjson").read_bytes()
    assert run([*command.split(), "--resume", str(folder)]) == 2
    assert capsys.readouterr().err == f"kvverify: --resume {folder}: {says.format(command=command)}\n"
    assert (folder / "events.ndjson").read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_another_version_are_named(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", [started(command, colour="blue")])
    assert run([*command.split(), "--resume", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kvverify: the run to resume was made with other options (")
    assert "colour" in error
    assert len(error.splitlines()) == 1


def test_a_live_self_test_of_another_version_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", [started("selftest", live="lab", seed=0)])
    assert run(["selftest", "--resume", str(folder)]) == 2
    words = "the run to resume was made with other options (faults); start a new one"
    assert capsys.readouterr().err == f"kvverify: {words}\n"
