"""The check that counts: change one line of the installed library, and the same command finds it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def overlay(folder: Path, package: str, file: str, line: str, altered: str) -> Path:
    """Return a folder in which ``package`` is the installed one with one line of ``file`` changed; the rest are links."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    installed, made = Path(spec.origin).parent, folder / package
    parts = Path(file).parts
    for depth in range(len(parts)):
        here = made.joinpath(*parts[:depth])
        here.mkdir(parents=True)
        for entry in installed.joinpath(*parts[:depth]).iterdir():
            if entry.name not in {parts[depth], "__pycache__"}:
                here.joinpath(entry.name).symlink_to(entry)
    source = installed.joinpath(file).read_text()
    assert source.count(line) == 1, f"{package}/{file} no longer has the line that this test changes"
    made.joinpath(file).write_text(source.replace(line, altered))
    return folder


def roundtrip(kernel: str, out: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvverify", "roundtrip", "--kernel", kernel, "--seed", "1", "--out", str(out)]
    python_path = os.pathsep.join(p for p in (str(path or ""), os.environ.get("PYTHONPATH", "")) if p)
    environment = {**os.environ, "PYTHONPATH": python_path}
    return subprocess.run([*command, "--examples", "48"], capture_output=True, text=True, check=False, env=environment)


FUSED = "chunk_gpu[layer_idx].view(n_valid, block_size, nh0, hs0).copy_(selected)"


@pytest.mark.parametrize("kernel", ["lmcache", "lmcache-block"])
def test_one_altered_line_of_lmcache(lmcache: ModuleType, tmp_path: Path, kernel: str) -> None:
    file = "v1/platform/torch_ops/mp_mem_kernels.py"
    altered = FUSED.replace("copy_(selected)", "copy_(selected.flip(1))")
    run = roundtrip(kernel, tmp_path / "run", overlay(tmp_path / "path", "lmcache", file, FUSED, altered))
    assert run.returncode == 1, run.stdout + run.stderr
    assert "token" in run.stdout


def test_one_altered_line_of_vllm(vllm: ModuleType, tmp_path: Path) -> None:
    file = "v1/kv_offload/cpu/swap_blocks_triton.py"
    line = "words = tl.load(sizes + job) // 8"
    altered = "words = tl.load(sizes + job) // 8 - 1"
    run = roundtrip("vllm-triton", tmp_path / "run", overlay(tmp_path / "path", "vllm", file, line, altered))
    assert run.returncode == 1, run.stdout + run.stderr
    assert "never written" in run.stdout


@pytest.mark.parametrize("kernel", ["lmcache", "lmcache-block", "vllm-triton"])
def test_the_library_as_installed_passes(lmcache: ModuleType, vllm: ModuleType, tmp_path: Path, kernel: str) -> None:
    run = roundtrip(kernel, tmp_path / "run")
    assert run.returncode == 0, run.stdout + run.stderr
