"""How numbers and names are written in every report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def size(count: int) -> str:
    """Return bytes in the largest binary unit that leaves a whole part.

    >>> size(1023), size(1536), size(3 * 2**30)
    ('1,023 B', '1.50 KiB', '3.00 GiB')
    """
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{count:,} B" if unit == "B" else f"{value:,.2f} {unit}"


def duration(seconds: float) -> str:
    """Return seconds as a person says them.

    >>> duration(0.42), duration(61), duration(7260)
    ('0.42 s', '1 min 1 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def utc(at: float) -> str:
    """Return seconds since the epoch as a date and time.

    >>> utc(1790000000.0), utc(1e300)
    ('2026-09-21 14:13:20 UTC', 'unknown')
    """
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):  # a clock that was never set, or a log that somebody edited
        return "unknown"


def plural(count: int, word: str) -> str:
    """Return ``count`` with its noun.

    >>> plural(1, "failure"), plural(1200, "sequence")
    ('1 failure', '1,200 sequences')
    >>> plural(2, "kind of step")
    '2 kinds of step'
    """
    if count != 1:
        noun, *rest = word.split(" ")
        word = " ".join([f"{noun}s", *rest])
    return f"{count:,} {word}"


def gpu_line(facts: Mapping[str, Any]) -> str:
    """Return what is known of a GPU (``provenance["gpu"]`` of a kernel that ran there) as one line.

    >>> gpu_line({"name": "H", "architecture": "sm_90", "count": 2, "torch": "2.11.0", "torch_version_cuda": "13.0"})
    'H, sm_90, 2 visible, torch 2.11.0 for CUDA 13.0'
    >>> gpu_line({"name": "M", "torch": "2.9.1", "torch_version_hip": "7.1", "driver": "6.14", "runtime": "HIP 7.1"})
    'M, torch 2.9.1 for ROCm 7.1, driver 6.14 (HIP 7.1)'
    """
    built = [f"{word} {facts[key]}" for word, key in _GPU_BUILDS.items() if facts.get(key)]
    torch = f"torch {facts['torch']}{' for ' if built else ''}{' '.join(built)}" if "torch" in facts else ""
    memory = size(facts["memory_bytes"]) if isinstance(facts.get("memory_bytes"), int) else ""
    count = f"{facts['count']} visible" if "count" in facts else ""
    driver = f"driver {facts['driver']}" if "driver" in facts else ""
    if runtime := str(facts.get("runtime", "")):
        driver = f"{driver} ({runtime})" if driver else f"driver of {runtime}"
    known = [str(facts.get("name", "")), str(facts.get("architecture", "")), memory, count, torch, driver]
    return ", ".join(word for word in known if word)


_GPU_BUILDS = {"CUDA": "torch_version_cuda", "ROCm": "torch_version_hip"}


def printable(text: str) -> str:
    r"""Return ``text`` with control characters escaped: names come from kernels and must not steer a terminal.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
