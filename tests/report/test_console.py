"""The live view: few plain lines into a pipe, a progress line on a terminal, no colour where none is wanted."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvverify.events import Event, ProblemMet
from kvverify.report.console import LiveConsole, time_left
from tests.report.golden import GOLDEN, batch, failure, fault, finished, probed, started


def show(
    events: list[Event],
    *,
    terminal: bool,
    total: int | None = None,
    budget_s: float | None = None,
    unit: str = "sequence",
    done: int = 0,
) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=200, highlight=False, markup=False)
    with LiveConsole(total=total, budget_s=budget_s, unit=unit, done=done, console=console) as live:
        for event in events:
            live.handle(event)
    live.close()
    return stream.getvalue()


def test_into_a_pipe_go_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = show(GOLDEN, terminal=False)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert "kernel vllm-triton does not run here: triton cannot be imported: No module named 'triton'" in lines
    assert sum(line.startswith("FAIL lmcache on minimax-tq4-LBNHC, step 3: block 7") for line in lines) == 1
    assert "F04 short-copy-width, torch: killed (wrong-bytes)" in lines


def test_progress_into_a_pipe_is_sparse_and_names_the_time_left() -> None:
    batches: list[Event] = [batch(number=n, sequences=10, at=1000.0 + n) for n in range(100)]
    lines = show([started(at=1000.0), *batches], terminal=False, total=2000).splitlines()
    progress = [line for line in lines if "compared" in line]
    assert 5 <= len(progress) <= 10
    assert progress[0] == "torch: 110 sequences of 2,000, 33.00 MiB compared, 2 min 52 s left"


def test_a_budget_decides_the_time_left() -> None:
    batches: list[Event] = [batch(number=n, at=1000.0 + 10 * n) for n in range(4)]
    lines = show([started(at=1000.0), *batches], terminal=False, budget_s=60.0).splitlines()
    assert lines[-1] == "torch: 80 sequences, 12.00 MiB compared, 30 s left"


def test_a_resumed_run_counts_on_but_is_timed_anew() -> None:
    events: list[Event] = [started(at=1000.0, resumed=True), batch(sequences=100, at=1010.0)]
    lines = show(events, terminal=False, total=1000, done=500).splitlines()
    assert lines[-1] == "torch: 600 sequences of 1,000, 3.00 MiB compared, 40 s left"


def test_why_the_only_kernel_cannot_run_is_said_once() -> None:
    problems = [ProblemMet(where="kernel cuda", problem="no GPU"), ProblemMet(where="kernel cuda", problem="it died")]
    lines = show([started(), probed("cuda", "no GPU"), *problems], terminal=False).splitlines()
    assert lines[1:] == ["kernel cuda does not run here: no GPU", "problem in kernel cuda: it died"]


def test_planted_faults_can_be_the_unit() -> None:
    events: list[Event] = [started(at=1_790_000_000.0), fault("killed"), fault("survived", "lmcache")]
    assert "fault" in show(events, terminal=False, total=10, unit="fault")
    # a live self-test said "0 B compared" to its end: faults of a server show in its answers
    assert "torch: 1 fault of 10, 1 min 57 s left" in show(events, terminal=False, total=10, unit="fault")


def test_a_terminal_gets_a_progress_line_and_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    text = show([started(), batch(), failure(), finished()], terminal=True, total=100)
    assert "\x1b[1;31mFAIL lmcache" in text
    assert "20 sequences of 100" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = show([started(), failure(), ProblemMet(where="x", problem="y"), finished()], terminal=True, total=100)
    assert "FAIL lmcache" in text
    assert "[31m" not in text
    assert "[1;31m" not in text


def test_hostile_text_does_not_steer_the_terminal() -> None:
    assert "kernel a\\x1b[2Jb[bold]" in show([probed("a\x1b[2Jb[bold]")], terminal=False)


def test_time_left_is_unknown_before_anything_is_done() -> None:
    assert time_left(10.0, 0, 100) is None
    assert time_left(10.0, 5, None) is None
    assert time_left(10.0, 50, 100) == 10.0
    assert time_left(10.0, 120, 100) == 0.0
