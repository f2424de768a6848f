"""Ask, in a child process, whether a kernel can run here.

Importing a serving engine takes seconds, changes global state and may kill the process; the parent only reads one line.
Run as ``python -m kvverify.kernels.probe SPEC``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvverify.errors import ContractError, EnvironmentProblem, KvverifyError, UsageError
from kvverify.kernels.registry import names, resolve

_TIME_LIMIT_S = 180
_ERRORS: dict[str, type[KvverifyError]] = {c.__name__: c for c in (UsageError, ContractError)}


@dataclass(frozen=True, slots=True)
class KernelProbe:
    """What was found. ``name`` is the kernel's own name where it could be made, else the spec; ``reason`` why it cannot run."""

    name: str
    available: bool
    reason: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)


def probe(spec: str) -> KernelProbe:
    """Make one instance of the kernel in a child process and ask for its provenance.

    Raises:
        UsageError: no such kernel, file or attribute.
        ContractError: it does not keep the plug-in contract.
    """
    source = resolve(spec)
    command = [sys.executable, "-m", "kvverify.kernels.probe", source.spec]
    environment = {**os.environ, **source.environment}
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=_TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return KernelProbe(spec, False, f"did not load within {_TIME_LIMIT_S} s")
    if not child.stdout:
        if child.returncode == 1 and not source.builtin:
            raise ContractError(f"kernel {spec!r} fails when loaded: {_last_words(child)}")
        return KernelProbe(spec, False, _last_words(child))
    answer = json.loads(child.stdout)
    if answer["error"] in _ERRORS:
        raise _ERRORS[answer["error"]](answer["reason"])
    return KernelProbe(answer["name"], not answer["error"], answer["reason"], answer["provenance"])


def probe_all() -> list[KernelProbe]:
    """Probe every built-in and installed kernel, side by side; a broken one becomes unavailable with its reason."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_probe_quietly, names()))


def _probe_quietly(spec: str) -> KernelProbe:
    try:
        return probe(spec)
    except KvverifyError as error:
        return KernelProbe(spec, False, str(error))


def _last_words(child: subprocess.CompletedProcess[str]) -> str:
    if child.returncode < 0:
        return f"loading it killed the process (signal {-child.returncode})"
    lines = child.stderr.strip().splitlines()
    if not lines:
        return f"loading it ended the process with code {child.returncode}"
    places = re.findall(r'^ +File "(.+)", line (\d+)', child.stderr, re.MULTILINE)
    return f"{lines[-1]} ({Path(places[-1][0]).name} line {places[-1][1]})" if places else lines[-1]


def _answer(spec: str) -> dict[str, Any]:
    """Return what the parent reads; ``error`` is the class of the error, empty for none."""
    try:
        kernel = resolve(spec).create()
        provenance = getattr(kernel, "provenance", None)
        return {"name": kernel.name, "error": "", "reason": "", "provenance": provenance() if provenance else {}}
    except (UsageError, ContractError, EnvironmentProblem) as error:
        return {"name": spec, "error": type(error).__name__, "reason": str(error), "provenance": {}}


def main() -> None:
    """Write the answer for the spec in ``sys.argv[1]`` as JSON to stdout; whatever the libraries print goes to stderr."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    answer = json.dumps(_answer(sys.argv[1]))
    with os.fdopen(stdout, "w") as out:
        out.write(answer)


if __name__ == "__main__":
    main()
