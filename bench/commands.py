"""What a user waits for: import, help, sequences a second, the whole selftest. Only the public command line is used."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe

MIB = 1 << 20


def best_seconds(command: list[str], tries: int = 5) -> float:
    """Return the least wall time of ``tries`` runs of ``command``."""
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def python(*arguments: str) -> list[str]:
    """Return a command for this interpreter."""
    return [sys.executable, *arguments]


def one_mib_recipe() -> dict[str, Any]:
    """Return a mixed layout (bf16 border layers, 4-bit middle ones) whose buffer is as near to 1 MiB as whole blocks allow."""
    import dataclasses

    border, middle = LayerRecipe("bf16", 2, 64, count=1), LayerRecipe("turboquant_4bit_nc", 2, 64, count=2)
    layers = (border, middle, border)
    block = place(Recipe(layers, num_blocks=1)).size_bytes
    return dataclasses.asdict(Recipe(layers, num_blocks=MIB // block, name="one-mib"))


def sequences_per_second(folder: Path, examples: int) -> float:
    """Return the rate at which the torch reference's campaign executes sequences, start-up of the process left out."""
    layout = folder / "one-mib.json"
    layout.write_text(json.dumps(one_mib_recipe()))
    run = folder / "rate"
    words = ("roundtrip", "--kernel", "torch", "--layout", str(layout), "--examples", str(examples), "--out", str(run))
    _run(*words)
    events = [json.loads(line) for line in (run / "events.ndjson").read_text().splitlines()]
    batches = [e for e in events if e["event"] == "BatchFinished"]
    return float(sum(b["sequences"] for b in batches)) / float(sum(b["seconds"] for b in batches))


def selftest_seconds(folder: Path) -> float:
    """Return the wall time of the whole selftest."""
    start = time.perf_counter()
    _run("selftest", "--out", str(folder / "selftest"))
    return time.perf_counter() - start


def _run(*words: str) -> None:
    child = subprocess.run(python("-m", "kvverify", *words), capture_output=True, text=True, check=False)
    if child.returncode:
        tail = "\n".join((child.stdout + child.stderr).splitlines()[-5:])
        raise RuntimeError(f"kvverify {words[0]} ended with {child.returncode}: {tail}")
