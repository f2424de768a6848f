"""Ask, in a child process, whether a kernel can run here.

Importing a serving engine takes seconds, changes global state and may kill the process; the parent only reads one line.
Run as ``python -m kvverify.kernels.probe DEVICE [SPEC]``; without a spec it only says whether the device can be used.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvverify.errors import ContractError, EnvironmentProblem, KvverifyError, UsageError
from kvverify.kernels.device import check_device, gpu_facts
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
    device: str = "cpu"


def probe(spec: str, device: str = "cpu") -> KernelProbe:
    """Make one instance of the kernel for ``device`` in a child process and ask for its provenance.

    Raises:
        UsageError: no such kernel for this device, file or attribute.
        ContractError: it does not keep the plug-in contract.
    """
    source = resolve(spec, device)
    try:
        child = _child(device, source.spec, environment=source.environment)
    except subprocess.TimeoutExpired:
        return KernelProbe(spec, False, f"did not load within {_TIME_LIMIT_S} s", device=device)
    if not child.stdout:
        if child.returncode == 1 and not source.builtin:
            raise ContractError(f"kernel {spec!r} fails when loaded: {_last_words(child)}")
        return KernelProbe(spec, False, _last_words(child), device=device)
    answer = json.loads(child.stdout)
    if answer["error"] in _ERRORS:
        raise _ERRORS[answer["error"]](answer["reason"])
    return KernelProbe(answer["name"], not answer["error"], answer["reason"], answer["provenance"], device)


def probe_all(device: str = "cpu") -> list[KernelProbe]:
    """Probe every kernel built in for ``device`` or installed, side by side; a broken one becomes unavailable with its reason.

    Where the device itself cannot be used, that is the reason of them all, and none of their libraries is loaded.
    """
    if device != "cpu" and (reason := device_problem(device)):
        return [KernelProbe(name, False, reason, device=device) for name in names(device)]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: _probe_quietly(name, device), names(device)))


def require_device(device: str) -> None:
    """Return where ``device`` can be used.

    Raises:
        EnvironmentProblem: it cannot, so that no kernel could run; names the option and says what to install.
    """
    if device != "cpu" and (reason := device_problem(device)):
        raise EnvironmentProblem(f"--device {device}: {reason}")


def device_problem(device: str) -> str:
    """Return why ``device`` cannot be used here, nothing where it can; torch is imported in a child process."""
    try:
        child = _child(device)
    except subprocess.TimeoutExpired:
        return f"torch did not answer within {_TIME_LIMIT_S} s whether it can use {device}"
    return str(json.loads(child.stdout)["reason"]) if child.stdout else _last_words(child)


def _child(device: str, *spec: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvverify.kernels.probe", device, *spec],
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        timeout=_TIME_LIMIT_S,
        check=False,
    )


def _probe_quietly(spec: str, device: str) -> KernelProbe:
    try:
        return probe(spec, device)
    except KvverifyError as error:
        return KernelProbe(spec, False, str(error), device=device)


def _last_words(child: subprocess.CompletedProcess[str]) -> str:
    if child.returncode < 0:
        return f"loading it killed the process (signal {-child.returncode})"
    lines = child.stderr.strip().splitlines()
    if not lines:
        return f"loading it ended the process with code {child.returncode}"
    places = re.findall(r'^ +File "(.+)", line (\d+)', child.stderr, re.MULTILINE)
    return f"{lines[-1]} ({Path(places[-1][0]).name} line {places[-1][1]})" if places else lines[-1]


def _answer(device: str, spec: str) -> dict[str, Any]:
    """Return what the parent reads; ``error`` is the class of the error, empty for none."""
    try:
        check_device(device)
        if not spec:
            return {"name": device, "error": "", "reason": "", "provenance": {}}
        kernel = resolve(spec, device).create()
        provenance = getattr(kernel, "provenance", None)
        known = provenance() if provenance else {}
        gpu = {"gpu": gpu_facts()} if device != "cpu" else {}
        return {"name": kernel.name, "error": "", "reason": "", "provenance": {**known, **gpu}}
    except (UsageError, ContractError, EnvironmentProblem) as error:
        reason = " ".join(str(error).split())  # a library's own message may have several lines
        return {"name": spec, "error": type(error).__name__, "reason": reason, "provenance": {}}


def main() -> None:
    """Write the answer for device and spec in ``sys.argv`` as JSON to stdout; whatever the libraries print goes to stderr."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    device, *spec = sys.argv[1:]
    answer = json.dumps(_answer(device, "".join(spec)))
    with os.fdopen(stdout, "w") as out:
        out.write(answer)


if __name__ == "__main__":
    main()
