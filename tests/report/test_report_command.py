"""``kvverify report``: the same files and the verdict's exit code, from the log alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvverify.cli.main import run
from kvverify.events import Event
from tests.report.golden import GOLDEN, PASSING, started
from tests.run_folder import write


@pytest.mark.parametrize(("events", "code"), [(PASSING, 0), (GOLDEN, 1), ([started()], 3), ([], 3)])
def test_exit_code_is_the_verdict(tmp_path: Path, events: list[Event], code: int) -> None:
    path = write(tmp_path / "run", events)
    assert run(["report", str(path)]) == code
    assert {p.name for p in path.iterdir()} == {"events.ndjson", "junit.xml", "report.html", "report.md"}


def test_making_them_again_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "run", GOLDEN)
    run(["report", str(path)])
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    run(["report", str(path)])
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before


def test_a_truncated_log_is_reported_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "run", PASSING)
    log = path / "events.ndjson"
    log.write_bytes(log.read_bytes()[:-20])
    assert run(["report", str(path)]) == 3
    assert "INCONCLUSIVE: the run did not come to its end" in capsys.readouterr().out


def test_a_damaged_log_is_one_line_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path / "good", PASSING), write(tmp_path / "bad", PASSING)
    log = bad / "events.ndjson"
    log.write_bytes(b"{}\n" + log.read_bytes())
    assert run(["report", str(good), str(bad)]) == 2
    assert "line 1: damaged (unknown event None)" in capsys.readouterr().err
    assert [p.name for p in good.iterdir()] == ["events.ndjson"]


def test_several_runs_make_a_sign_off_and_nothing_in_their_own_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(write(tmp_path / "a", PASSING)), str(write(tmp_path / "b", GOLDEN))]
    assert run(["report", *paths, "--out", str(tmp_path / "out"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["verdict"], document["exit_code"]) == ("FAIL", 1)
    assert [one["verdict"] for one in document["runs"]] == ["PASS", "FAIL"]
    assert (tmp_path / "out" / "signoff.html").is_file()
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["events.ndjson"]


def test_reports_never_go_over_those_of_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(tmp_path / "one", PASSING), write(tmp_path / "other", GOLDEN)
    assert run(["report", str(one), "--out", str(other)]) == 2
    assert "holds another run" in capsys.readouterr().err
    assert run(["report", str(one), str(one)]) == 2
    assert "name each run once" in capsys.readouterr().err
    assert [p.name for p in other.iterdir()] == ["events.ndjson"]


def test_a_folder_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path)]) == 2
    assert "holds no events.ndjson" in capsys.readouterr().err
    write(tmp_path / "run", PASSING)
    (tmp_path / "file").touch()
    assert run(["report", str(tmp_path / "run"), "--out", str(tmp_path / "file" / "x")]) == 2
    assert "a file is in the way" in capsys.readouterr().err
