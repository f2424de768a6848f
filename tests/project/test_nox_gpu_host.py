"""`nox -s roundtrip` on a machine whose interpreter has a GPU build of torch, which a stub in front of the real one pretends.

The session runs in a copy of the checkout, so that it shares no folder with other runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NEEDED = ("kvverify", "evals", "requirements", "noxfile.py", "pyproject.toml", "README.md", "LICENSE")
FORBIDDEN = ("torch", "vllm", "lmcache", "triton", "numpy")

# the real torch, with a GPU that it does not have
PRETENDING_TORCH = """
import pathlib, sys
here = str(pathlib.Path(__file__).parents[1])
sys.path.remove(here)
del sys.modules["torch"]
import torch
torch.version.cuda = "13.0"
torch.cuda.is_available = lambda: True
sys.path.insert(0, here)
"""
STUB_TORCH = """
class version: cuda = None; hip = "7.0.1"
class cuda: is_available = staticmethod(lambda: True)
"""
SKIPPED = """
import pytest
@pytest.mark.skip(reason="no GPU")
def test_copies(): pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the session needs; its only property test is a skipped one."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    (copy / "fuzz").mkdir()
    (copy / "fuzz" / "test_skipped.py").write_text(SKIPPED)
    return copy


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """An empty folder for stub packages."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    return folder


def write_stub(folder: Path, name: str, version: str, source: str) -> None:
    """Write a package that both Python and pip find in ``folder``."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run_nox(checkout: Path, python: Path, stubs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the session by ``python`` with ``stubs`` in front of its packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NOX", "PYTEST", "VIRTUAL_ENV"))}
    command = [str(python), "-m", "nox", "-f", str(checkout / "noxfile.py"), "-s", "roundtrip", "--", *arguments]
    environment = {**kept, "PYTHONPATH": str(stubs)}
    return subprocess.run(
        command,
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )


def packages(folder: Path) -> set[str]:
    """Return the names in a folder of packages, without versions."""
    return {p.name.split("-")[0].split(".")[0].lower() for p in folder.iterdir()}


def test_a_visible_gpu_that_no_kernel_used_fails(torch: ModuleType, checkout: Path, stubs: Path) -> None:
    (stubs / "torch").mkdir()
    (stubs / "torch" / "__init__.py").write_text(PRETENDING_TORCH)
    words = ("--kernel", "torch", "--device", "cpu", "--examples", "20", "--out", "runs/here")
    ended = run_nox(checkout, Path(sys.executable), stubs, *words)
    assert ended.returncode != 0
    assert f"torch for CUDA 13.0 with a visible GPU: running in {sys.executable}" in ended.stdout
    assert "not a pass: a GPU is visible and no kernel ran on it (ran: torch on cpu); no test executed" in ended.stdout
    assert (checkout / "runs" / "here" / "events.ndjson").is_file()
    assert not (checkout / ".nox" / "stacks").exists()
    assert packages(checkout / ".nox" / "side") <= {"kvverify", "bin"}


def test_a_gpu_that_torch_cannot_use_ends_before_the_run(torch: ModuleType, checkout: Path, stubs: Path) -> None:
    (stubs / "torch").mkdir()
    (stubs / "torch" / "__init__.py").write_text(PRETENDING_TORCH)
    ended = run_nox(checkout, Path(sys.executable), stubs, "--kernel", "torch", "--out", "runs/here")
    assert ended.returncode != 0
    assert "kvverify: --device cuda: " in ended.stdout  # which nobody wrote: the session adds it
    assert not (checkout / "runs").exists()


def test_only_what_is_missing_is_installed_and_only_beside_the_interpreter(
    checkout: Path, stubs: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "outer", with_pip=True)
    python = tmp_path / "outer" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "nox"], check=True)
    write_stub(stubs, "torch", "2.9.0", STUB_TORCH)
    write_stub(stubs, "numpy", "2.1.0", "")
    (site_packages,) = (tmp_path / "outer" / "lib").glob("python*/site-packages")
    before = sorted(p.name for p in site_packages.iterdir())
    ended = run_nox(checkout, python, stubs, "--help")
    assert "torch for ROCm 7.0.1 with a visible GPU: running in" in ended.stdout
    assert "Usage: kvverify roundtrip" in ended.stdout
    assert ended.returncode != 0  # nothing was executed
    assert "not a pass: no kernel executed a sequence; no test executed" in ended.stdout
    assert sorted(p.name for p in site_packages.iterdir()) == before
    side = packages(checkout / ".nox" / "side")
    assert {"kvverify", "click", "hypothesis", "pytest"} <= side
    assert side.isdisjoint(FORBIDDEN)


def test_a_numpy_that_is_too_old_is_not_replaced(checkout: Path, stubs: Path, torch: ModuleType) -> None:
    write_stub(stubs, "torch", "2.9.0", STUB_TORCH)
    write_stub(stubs, "numpy", "1.21.0", "")
    ended = run_nox(checkout, Path(sys.executable), stubs)
    assert ended.returncode != 0
    assert f"kvverify needs another numpy than {sys.executable} has, and never replaces it" in ended.stdout
    assert packages(checkout / ".nox" / "side") == set()
