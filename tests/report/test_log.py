"""The event log: what is written comes back, a kill at any byte loses at most one event, damage is named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.errors import EnvironmentProblem, UsageError
from kvverify.event_json import from_json, to_json
from kvverify.events import Event, KernelProbed, ProblemMet, RunFinished, RunStarted
from kvverify.report.folder import RunFolder
from kvverify.report.log import EventBus, EventWriter, read_events

STARTED = RunStarted(at=1.0, command="roundtrip", version="0.1.0", seed=7, options={"examples": 10})
PROBED = KernelProbed(at=2.0, kernel="torch «ü»", available=True, provenance={"version": "2.13"})
FINISHED = RunFinished(at=3.0, seconds=2.0)
EVENTS: list[Event] = [STARTED, PROBED, FINISHED]


def write(path: Path, events: list[Event]) -> Path:
    writer = EventWriter(RunFolder(path))
    for event in events:
        writer.handle(event)
    writer.close()
    return path / "events.ndjson"


def test_events_come_back_as_written(tmp_path: Path) -> None:
    log = write(tmp_path, EVENTS)
    assert read_events(log) == EVENTS
    assert read_events(tmp_path) == EVENTS
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == [
        "RunStarted",
        "KernelProbed",
        "RunFinished",
    ]


@given(st.text(), st.text())
def test_any_text_comes_back(where: str, problem: str) -> None:
    event = ProblemMet(at=1.0, where=where, problem=problem)
    with tempfile.TemporaryDirectory() as folder:
        assert read_events(write(Path(folder), [event, event])) == [event, event]


@given(st.data())
def test_a_kill_at_any_byte_loses_at_most_the_unfinished_event_and_resume_repairs_it(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = write(Path(folder), EVENTS)
        whole = log.read_bytes()
        cut = data.draw(st.integers(0, len(whole)), label="cut")
        log.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n") + (cut < len(whole) and whole[cut : cut + 1] == b"\n")
        assert read_events(log) == EVENTS[:complete]
        assert read_events(write(Path(folder), [FINISHED])) == [*EVENTS[:complete], FINISHED]


def test_zero_bytes_after_a_power_cut_count_as_an_unfinished_line(tmp_path: Path) -> None:
    log = write(tmp_path, EVENTS)
    log.write_bytes(log.read_bytes() + b"\0" * 100)
    assert read_events(log) == EVENTS


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (b"{broken\n", "Expecting property name"),
        (b"\n", "Expecting value"),
        (b"[1]\n", "got list"),
        (b"\xff\xfe\n", "can't decode"),
        (b'{"event": "Nothing"}\n', "unknown event 'Nothing'"),
        (b'{"event": "RunFinished", "seconds": 1, "extra": 2}\n', "unexpected keyword argument 'extra'"),
        (b'{"event": "RunFinished", "seconds": "long"}\n', "seconds is str, expected float"),
        (b'{"event": "RunFinished"}\n', "missing 1 required"),
        (b'{"event": "RunFinished", "seconds": 1e999}\n', "seconds is float"),
        (b"[" * 100_000 + b"\n", "recursion"),
    ],
)
def test_damage_in_the_middle_names_the_line(tmp_path: Path, damage: bytes, reason: str) -> None:
    log = write(tmp_path, EVENTS)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], damage, lines[2]]))
    before = log.read_bytes()
    with pytest.raises(UsageError, match=r"events\.ndjson, line 2: damaged \(.*" + reason):
        read_events(log)
    with pytest.raises(UsageError, match="line 2: damaged"):
        EventWriter(RunFolder(tmp_path))
    assert log.read_bytes() == before


def test_damage_in_a_finished_last_line_is_an_error_too(tmp_path: Path) -> None:
    log = write(tmp_path, EVENTS)
    log.write_bytes(log.read_bytes() + b"{broken\n")
    with pytest.raises(UsageError, match="line 4: damaged"):
        read_events(log)


def test_a_missing_log_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(No such file"):
        read_events(tmp_path / "none")


def test_provenance_of_any_kind_can_be_written(tmp_path: Path) -> None:
    odd = KernelProbed(
        at=1.0, kernel="k", available=True, provenance={"nan": float("nan"), "path": Path("x"), "m": {1: (2, {3})}}
    )
    [back] = read_events(write(tmp_path, [odd]))
    assert isinstance(back, KernelProbed)
    assert back.provenance == {"nan": "nan", "path": "x", "m": {"1": [2, "{3}"]}}


def test_every_event_is_on_disk_when_handle_returns(tmp_path: Path) -> None:
    writer = EventWriter(RunFolder(tmp_path))
    for count, event in enumerate(EVENTS, start=1):
        writer.handle(event)
        assert len(read_events(tmp_path)) == count
    writer.close()
    writer.close()


def test_a_full_disk_ends_the_log_with_the_event_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventWriter(RunFolder(tmp_path))
    writer.handle(STARTED)
    real_write = os.write

    def half_then_full(file: int, data: bytes) -> int:
        if len(data) > 20:
            return real_write(file, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half_then_full)
        with pytest.raises(EnvironmentProblem, match=r"event log .*no space left"):
            writer.handle(ProblemMet(at=2.0, where="w" * 3, problem=""))
    writer.close()
    assert read_events(tmp_path) == [STARTED]
    assert (tmp_path / "events.ndjson").read_bytes().endswith(b"\n")


def test_the_device_that_is_always_full(tmp_path: Path) -> None:
    (tmp_path / "events.ndjson").symlink_to("/dev/full")
    writer = EventWriter(RunFolder(tmp_path))
    with pytest.raises(EnvironmentProblem, match="no space left"):
        writer.handle(STARTED)
    writer.close()


def test_two_processes_cannot_write_one_log(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from kvverify.report.folder import RunFolder;"
        "from kvverify.report.log import EventWriter; EventWriter(RunFolder(Path(sys.argv[1])))"
    )
    writer = EventWriter(RunFolder(tmp_path))
    command = [sys.executable, "-c", script, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another process is still writing it" in refused.stderr
    writer.close()
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@given(st.data())
def test_any_damage_is_either_read_or_named(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = write(Path(folder), EVENTS)
        text = bytearray(log.read_bytes())
        for _ in range(data.draw(st.integers(1, 5))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        log.write_bytes(text)
        try:
            events = read_events(log)
        except UsageError:
            with pytest.raises(UsageError, match=r"line \d+: damaged"):
                read_events(log)
        else:
            assert len(events) <= len(EVENTS) + 5


def test_a_writer_killed_in_the_middle_leaves_a_log_that_can_be_resumed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from kvverify.report.folder import RunFolder;"
        "from kvverify.report.log import EventWriter; from kvverify.events import ProblemMet\n"
        "writer = EventWriter(RunFolder(Path(sys.argv[1])))\n"
        "while True: writer.handle(ProblemMet(where='w' * 5000, problem='p'))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    deadline = time.monotonic() + 20
    log = tmp_path / "events.ndjson"
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size > 200_000):
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = read_events(tmp_path)
    assert len(before) >= 40
    assert read_events(write(tmp_path, [FINISHED])) == [*before, FINISHED]


class Recorder:
    def __init__(self, *, fails: bool = False) -> None:
        self.seen: list[Event] = []
        self.closed = 0
        self.fails = fails

    def handle(self, event: Event) -> None:
        self.seen.append(event)

    def close(self) -> None:
        self.closed += 1
        if self.fails:
            raise OSError("cannot close")


def test_the_bus_stamps_events_once_and_gives_all_consumers_the_same(tmp_path: Path) -> None:
    recorder = Recorder()
    bus = EventBus([EventWriter(RunFolder(tmp_path)), recorder], earlier=[STARTED])
    bus.emit(RunFinished(seconds=1.0))
    bus.close()
    assert recorder.seen == read_events(tmp_path) == bus.events[1:]
    assert bus.events[0] is STARTED
    assert recorder.seen[0].at > 1.7e9


def test_the_bus_closes_everybody_even_if_one_cannot() -> None:
    consumers = [Recorder(), Recorder(fails=True), Recorder()]
    with pytest.raises(OSError, match="cannot close"):
        EventBus(consumers).close()
    assert [c.closed for c in consumers] == [1, 1, 1]


@pytest.mark.parametrize("event", EVENTS)
def test_json_round_trip(event: Event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
