"""The process in which generated code runs. ``python -I -S code_child.py`` reads a request from stdin and writes a report to stdout.

Request and report are JSON: {program, function, cases, tests, memory_bytes, cpu_seconds} and {stage, error, results}. It limits itself before it
runs anything: memory, processor time, size of files, no core dump, and the filter of :mod:`system_calls`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

REPORT_BYTES = 1 << 20


def main() -> None:
    """Run one request."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 (pathlib costs 10 ms a sample)
    import system_calls  # type: ignore[import-not-found]  # by path: -I keeps kvverify itself out

    sys.path.pop(0)
    request = json.load(sys.stdin)
    out = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    _limit(request["memory_bytes"], request["cpu_seconds"])
    system_calls.apply()
    report = json.dumps(_run(request)).encode()
    os.write(out, report[:REPORT_BYTES])
    os._exit(0)


def _limit(memory_bytes: int, cpu_seconds: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, REPORT_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _run(request: dict[str, Any]) -> dict[str, Any]:
    try:
        program = compile(request["program"], "answer", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as problem:
        return {"stage": "syntax", "error": f"{type(problem).__name__}: {problem}"[:200], "results": []}
    scope: dict[str, Any] = {"__name__": "answer"}
    error = _attempt(lambda: exec(program, scope))  # noqa: S102 (what this process is for)
    function = scope.get(request["function"])
    if error or (request["cases"] and not callable(function)):
        return {"stage": "definition", "error": error or f"no function {request['function']}", "results": []}
    results = [_call(function, case["args"]) for case in request["cases"]]
    if request["tests"]:
        error = _attempt(lambda: exec(compile(request["tests"], "tests", "exec"), scope))  # noqa: S102
        results.append({"error": error} if error else {"value": True})
    return {"stage": "ran", "error": "", "results": results}


def _call(function: Any, arguments: list[Any]) -> dict[str, Any]:
    held: list[Any] = []
    error = _attempt(lambda: held.append(json.loads(json.dumps(function(*arguments)))))
    return {"error": error} if error else {"value": held[0]}


def _attempt(step: Any) -> str:
    try:
        step()
    except BaseException as problem:  # noqa: BLE001 - an answer raises anything, SystemExit too; its process ends here
        name = type(problem).__name__
    else:
        return ""
    return name


if __name__ == "__main__":
    main()
