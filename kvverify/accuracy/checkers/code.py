"""Code answers, run in a child process against cases with exact results. This executes what a model wrote.

It is refused unless the task says ``allow_code = true`` and the environment says KVVERIFY_ALLOW_CODE=1. The child has no network, starts no
process or thread, writes no file, and is bounded in memory and time (:mod:`code_child`, :mod:`system_calls`); it can read what its user can.
Linux on x86-64 and ARM64 only, since nothing else has that filter.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from kvverify.accuracy.checkers import system_calls
from kvverify.accuracy.checkers.answer_text import Fenced, fenced, whole_answer
from kvverify.accuracy.checkers.parameters import share_right
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score
from kvverify.errors import EnvironmentProblem, UsageError

ALLOW_VARIABLE = "KVVERIFY_ALLOW_CODE"
MEMORY_BYTES = 512 << 20
CPU_SECONDS = 5
WALL_SECONDS = 15.0  # for code that sleeps; on a busy machine the processor's time decides first
_CHILD = Path(__file__).with_name("code_child.py")


def check_permission(details: Mapping[str, Any], task: str) -> None:
    """Refuse to run generated code without both consents, or without the filter that confines it.

    Raises:
        UsageError: the task or the environment does not allow it.
        EnvironmentProblem: this machine cannot confine it.
    """
    if details.get("allow_code") is not True:
        raise UsageError(
            f"task {task} runs code that the model writes: set options.allow_code = true in the suite to allow it"
        )
    if os.environ.get(ALLOW_VARIABLE) != "1":
        raise UsageError(
            f"task {task} runs code that the model writes: set {ALLOW_VARIABLE}=1 in the environment to allow it"
        )
    if reason := system_calls.supported():
        raise EnvironmentProblem(
            f"task {task} runs code that the model writes, which cannot be confined here: {reason}"
        )


def code(sample: Sample, text: str) -> Score:
    """Score 1 where the answer's function passes all of ``details["cases"]`` ({args, expected}) and ``details["tests"]`` (Python text).

    ``details["function"]`` is its name, ``details["code_prefix"]`` the code that a completion goes on from. Aspect ``cases``: the share passed.

    Raises:
        UsageError: code is not allowed to run.
        EnvironmentProblem: it cannot be confined.
    """
    details = sample.details
    check_permission(details, sample.task)
    program, error = _program(sample, text)
    cases: list[dict[str, Any]] = list(details.get("cases", ()))
    request = {"program": program, "function": details["function"], "cases": cases, "tests": details.get("tests", "")}
    report = run_confined(request)
    if report["stage"] == "syntax":
        return Score(0.0, format_error=f"not Python: {report['error']}", aspects={"cases": 0.0})
    passed = [_passed(case, got) for case, got in zip([*cases, *_text_tests(details)], report["results"], strict=False)]
    share = sum(passed) / (len(cases) + len(_text_tests(details)))
    return Score(float(share == 1.0), format_error=error, aspects={"cases": share})


def run_confined(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a request of :mod:`code_child` and return its report; stage ``stopped`` where it ended without one."""
    limits = {"memory_bytes": MEMORY_BYTES, "cpu_seconds": CPU_SECONDS}
    try:
        body = json.dumps({**request, **limits}).encode()  # escapes half characters, which compile() then refuses
        with tempfile.TemporaryFile() as report, tempfile.TemporaryDirectory() as empty:
            _run_child(body, report, empty)
            report.seek(0)
            read = json.loads(report.read() or b"null")
    except OSError as problem:
        raise EnvironmentProblem(f"the process for generated code did not start: {problem}") from problem
    except ValueError:  # a report cut at its longest
        read = None
    whole = isinstance(read, dict) and isinstance(read.get("results"), list) and "stage" in read
    return read if whole else {"stage": "stopped", "error": "ended without a report", "results": []}


def _run_child(body: bytes, report: IO[bytes], folder: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", str(_CHILD)],
        stdin=subprocess.PIPE,
        stdout=report,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        start_new_session=True,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.communicate(body, timeout=WALL_SECONDS)
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _program(sample: Sample, text: str) -> tuple[str, str]:
    """Return the whole program: a fenced function as it is, anything else as what follows the prompt's code."""
    prefix, name = str(sample.details.get("code_prefix", "")), str(sample.details["function"])
    answer = whole_answer(sample, text)
    block: Fenced | None = fenced(answer)
    body = block.body if block else answer
    if f"def {name}" in body or not prefix:
        return body, ""
    return prefix + body, ""


def _text_tests(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"expected": True}] if details.get("tests") else []


def _passed(case: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
    return "value" in got and share_right(case["expected"], got["value"]) == 1.0
