"""The live view of a run on standard error: a progress line with the time left on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    CodecCompared,
    Event,
    FailureFound,
    FaultPlanted,
    KernelProbed,
    ProblemMet,
    RequestAnswered,
    RunStarted,
)
from kvverify.events_accuracy import SampleAnswered
from kvverify.report.console_live import is_progress, live_line
from kvverify.report.words import duration, plural, printable, size
from kvverify.verdicts import differs

_Counted = BatchFinished | FaultPlanted | CodecCompared | RequestAnswered | SampleAnswered
PLAIN_EVERY_S = 10.0  # without a terminal: at most one progress line in this time


class _TimeLeft(ProgressColumn):
    """Elapsed time and an estimate of the rest."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        left = time_left(elapsed, task.completed, task.total)
        return Text(f"{duration(elapsed)} elapsed" + (f", {duration(left)} left" if left is not None else ""))


def time_left(elapsed: float, done: float, total: float | None) -> float | None:
    """Return the seconds that the rest takes at the speed so far, None where that cannot be known."""
    if total is None or done <= 0 or elapsed <= 0:
        return None
    return elapsed * max(0.0, total - done) / done


class LiveConsole:
    """Shows a run while it goes on.

    ``total`` is the number of sequences of all kernels (of planted faults times kernels, for ``unit`` "fault"), None where a
    time budget ends the run; ``budget_s`` is that budget of the whole run in seconds; ``done`` counts what an interrupted run had done.
    """

    def __init__(
        self,
        *,
        total: int | None = None,
        budget_s: float | None = None,
        unit: str = "sequence",
        done: int = 0,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False)
        self._plain = not self._console.is_terminal
        self._unit, self._total, self._budget_s, self._done = unit, total, budget_s, done
        self._at_start = done
        self._bytes = 0
        self._began: float | None = None
        self._told = 0.0
        self._seen_failures: set[tuple[str, str]] = set()
        self._not_run: set[tuple[str, str]] = set()  # where and why; a problem that says the same is not said again
        self._samples: set[tuple[str, int, int]] = set()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def handle(self, event: Event) -> None:
        """Show what ``event`` means for the person who waits."""
        if self._began is None:
            self._begin(event.at)
        match event:
            case RunStarted():
                again = "resumed" if event.resumed else "started"
                self._say(f"{event.command} {again}, seed {event.seed}")
            case KernelProbed(available=True):
                known = (event.provenance.get(key) for key in ("library", "version"))
                self._say(f"kernel {event.kernel} " + " ".join(str(v) for v in known if v))
            case KernelProbed():
                self._not_run.add((f"kernel {event.kernel}", event.reason))
                self._say(f"kernel {event.kernel} does not run here: {event.reason}", "yellow")
            case CampaignStarted():
                refused = f", {len(event.refused)} refused" if event.refused else ""
                self._say(f"kernel {event.kernel}: {plural(len(event.layouts), 'layout')}{refused}")
            case BatchFinished():
                self._bytes += event.compared_bytes
                self._advance(event.sequences if self._unit == "sequence" else 0, event)
            case FailureFound():
                self._failure(event)
            case FaultPlanted():
                self._fault(event)
            case CodecCompared():
                self._comparison(event)
            case ProblemMet() if (event.where, event.problem) not in self._not_run:
                self._say(f"problem in {event.where}: {event.problem}", "yellow")
            case RequestAnswered():
                self._say_live(event)
                self._advance(1 if self._unit == "request" and is_progress(event) else 0, event)
            case SampleAnswered():
                self._say_live(event)
                self._advance(self._new_samples(event) if self._unit == "sample" else 0, event)
            case _:
                self._say_live(event)

    def close(self) -> None:
        """Give the terminal back; a second call does nothing."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _begin(self, at: float) -> None:
        self._began = self._told = at
        if self._plain:
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[done]}", markup=False),
            _TimeLeft(),
        )
        self._progress = Progress(
            *columns, console=self._console, transient=True, refresh_per_second=4, redirect_stdout=False
        )
        total = self._budget_s if self._budget_s is not None else self._total
        self._task = self._progress.add_task("starting", total=total, done="")
        self._progress.start()

    def _advance(self, count: int, event: _Counted) -> None:
        self._done += count
        who = _who(event)
        elapsed = max(0.0, event.at - (self._began or event.at))
        # the share that was done before an interruption took none of this attempt's time
        now = self._done - self._at_start
        total = None if self._total is None else self._total - self._at_start
        done = plural(self._done, self._unit) + (f" of {self._total:,}" if self._total is not None else "")
        done += f", {size(self._bytes)} compared" if self._bytes or self._unit in {"sequence", "comparison"} else ""
        if self._progress is not None and self._task is not None:
            share, whole = (elapsed, self._budget_s) if self._budget_s is not None else (float(now), total)
            self._progress.update(self._task, description=who, completed=share, total=whole, done=done)
        elif event.at - self._told >= PLAIN_EVERY_S:
            self._told = event.at
            left = time_left(elapsed, now, total)
            if self._budget_s is not None:
                left = max(0.0, self._budget_s - elapsed)
            self._say(f"{who}: {done}" + (f", {duration(left)} left" if left is not None else ""))

    def _failure(self, event: FailureFound) -> None:
        if (event.kernel, event.fingerprint) not in self._seen_failures:
            self._seen_failures.add((event.kernel, event.fingerprint))
            self._say(f"FAIL {event.kernel} on {event.layout}, step {event.step}: {event.headline}", "bold red")

    def _comparison(self, event: CodecCompared) -> None:
        self._bytes += event.compared_bytes
        if differs(event):
            place = f"{event.library} {event.format}, head size {event.head_size}, {event.what}"
            self._say(f"FAIL {place}: {event.headline}", "bold red")
        self._advance(1 if self._unit == "comparison" else 0, event)

    def _new_samples(self, event: SampleAnswered) -> int:
        """Return 1 at a sample's first answer: judged afterwards, or asked once more, it is one sample all the same."""
        known = len(self._samples)
        self._samples.add((event.task, event.length, event.index))
        return len(self._samples) - known

    def _fault(self, event: FaultPlanted) -> None:
        why = event.by or event.reason
        text = f"{event.fault} {event.name}, {event.kernel}: {event.outcome}" + (f" ({why})" if why else "")
        self._say(text, "bold red" if event.outcome == "survived" else "")
        self._advance(1 if self._unit == "fault" else 0, event)

    def _say_live(self, event: Event) -> None:
        said = live_line(event)
        for line in said[0].split("\n") if said else []:
            self._say(line, said[1] if said else "")

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style=style), soft_wrap=True)


def _who(event: _Counted) -> str:
    match event:
        case CodecCompared():
            return event.library
        case RequestAnswered():
            return f"{event.arm}, round {event.round}"
        case SampleAnswered():
            return f"{event.task} {event.length}" if event.length else event.task
        case _:
            return event.kernel
