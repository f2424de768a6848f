"""The run folder: never overwrites, never leaves something half written, says what stands in the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvverify.errors import EnvironmentProblem, UsageError
from kvverify.report.folder import RunFolder, disk_problem


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 KiB, less than what the probe writes."""
    point = tmp_path / "tiny"
    point.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=32k", "tmpfs", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode(errors='replace').strip()}")
    yield point
    subprocess.run(["umount", "--lazy", point], check=True)


def test_default_folders_are_distinct_and_named_after_time_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [RunFolder.create(None, "roundtrip").path for _ in range(3)]
    assert len(set(made)) == 3
    assert all(path.parent == Path("runs") and path.is_dir() for path in made)
    assert all("Z-roundtrip" in path.name for path in made)
    assert not any(list(path.iterdir()) for path in made)


def test_out_is_made_with_its_parents(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a" / "b", "roundtrip")
    assert folder.path == tmp_path / "a" / "b"
    assert folder.path.is_dir()


def test_out_may_be_an_existing_folder_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert RunFolder.create(tmp_path, "roundtrip").path == tmp_path
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("held", ["events.ndjson", "run.json", "failures", "report.html"])
def test_out_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path, held: str) -> None:
    (tmp_path / held).write_text("earlier")
    with pytest.raises(
        UsageError, match=rf"already holds a run \({held}\).*--resume {tmp_path}, or name another folder"
    ):
        RunFolder.create(tmp_path, "roundtrip")
    assert (tmp_path / held).read_text() == "earlier"


def test_a_file_in_the_way_is_an_environment_problem_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(EnvironmentProblem, match=r"a file is in the way .*--out"):
            RunFolder.create(out, "roundtrip")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_unwritable_place_is_an_environment_problem() -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot be written .* name a writable folder with --out") as caught:
        RunFolder.create(Path("/proc/kvverify-run"), "roundtrip")
    assert caught.value.exit_code == 2


def test_full_disk_is_found_before_the_run_and_leaves_nothing(tiny_disk: Path) -> None:
    with pytest.raises(
        EnvironmentProblem, match="no space left; free some, or name a folder on another disk with --out"
    ):
        RunFolder.create(tiny_disk / "deep" / "run", "roundtrip")
    assert list(tiny_disk.iterdir()) == []


def test_full_disk_is_found_on_resume_too(tiny_disk: Path) -> None:
    (tiny_disk / "events.ndjson").touch()
    with pytest.raises(EnvironmentProblem, match="no space left"):
        RunFolder.open(tiny_disk)
    assert [p.name for p in tiny_disk.iterdir()] == ["events.ndjson"]
    assert RunFolder.open(tiny_disk, writable=False).path == tiny_disk


def test_open_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(UsageError, match=r"holds no events\.ndjson"):
        RunFolder.open(tmp_path)
    (tmp_path / "events.ndjson").touch()
    assert RunFolder.open(tmp_path).events == tmp_path / "events.ndjson"
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.open(tmp_path / "events.ndjson")


def test_failure_files_keep_their_contents_and_hostile_names_stay_inside(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "roundtrip")
    for name in ("b3-abc", "../../outside", "a b/ü.json", "..", ""):
        inside = folder.write_failure(name, {"name": name})
        assert json.loads((folder.path / inside).read_text()) == {"name": name}
        assert (folder.path / inside).resolve().parent == folder.failures.resolve()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_a_write_that_fails_keeps_the_earlier_file(tiny_disk: Path) -> None:
    folder = RunFolder(tiny_disk)
    folder.write_run_json({"seed": 1})
    with pytest.raises(EnvironmentProblem, match="no space left"):
        folder.write_run_json({"filler": "x" * 100_000})
    assert json.loads(folder.run_json.read_text()) == {"seed": 1}
    assert [p.name for p in tiny_disk.iterdir()] == ["run.json"]


def test_a_quota_reads_like_a_full_disk() -> None:
    assert "no space left" in str(disk_problem("run folder x", OSError(errno.EDQUOT, "Disk quota exceeded")))
