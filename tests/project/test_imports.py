"""Starting kvverify is cheap: what is heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "numpy",
    "pydantic",
    "hypothesis",
    "rich",
    "jinja2",
    "triton",
    "vllm",
    "lmcache",
    "scipy",
    "matplotlib",
)
HELP = "import sys; sys.argv = ['kvverify', '--help']; from kvverify.cli.main import run; run(['--help'])"


def heavy_modules_after(code: str) -> set[str]:
    """Return which heavy packages a fresh interpreter has loaded after ``code``."""
    script = f"{code}\nimport sys\nprint('\\n@', *(m for m in {HEAVY!r} if m in sys.modules))"
    child = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(child.stdout.rsplit("@", 1)[1].split())


def cpu_ms(code: str, tries: int = 5) -> float:
    """Return the least processor time of ``tries`` fresh interpreters that run ``code``; other work on the machine does not count."""
    times = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, env=dict(os.environ))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime))
    return min(times)


@pytest.mark.parametrize("code", ["import kvverify", "import kvverify.events, kvverify.errors", HELP])
def test_nothing_heavy_is_imported(code: str) -> None:
    assert heavy_modules_after(code) == set()


def test_the_check_above_can_fail() -> None:
    assert "numpy" in heavy_modules_after("import numpy")


def test_import_takes_less_than_150_ms() -> None:
    assert cpu_ms("import kvverify") < 150


def test_help_takes_less_than_300_ms() -> None:
    assert cpu_ms(HELP) < 300


def test_every_module_of_cli_is_loaded_lazily() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"{HELP}\nprint('@', *(m for m in sys.modules if m.startswith('kvverify.cli.')))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.rsplit("@", 1)[1].split() == ["kvverify.cli.main"]
