"""The payload kernels compile for MI300 (gfx942) and MI355X (gfx950). This takes Triton's compiler and no GPU; nothing is run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ARCHITECTURES = ("gfx942", "gfx950")
ROOT = Path(__file__).parents[2]
TOY = """
import triton
import triton.language as tl

@triton.jit
def _flipped(x, CUDA: tl.constexpr):
    if CUDA:
        return tl.inline_asm_elementwise("xor.b32 $0, $1, 5;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    return x ^ 5

@triton.jit
def toy(data, count, SIZE: tl.constexpr, CUDA: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(data + at, _flipped(tl.load(data + at, mask=at < count), CUDA), mask=at < count)

SIGNATURES = {"toy": {"data": "*i32", "count": "i32", "SIZE": 256, "CUDA": 0}}
"""


@pytest.fixture(autouse=True)
def triton(torch: object) -> None:
    """Triton with its AMD backend."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("triton.backends.amd") is None:
        pytest.skip("triton with its AMD backend is not installed")


def compile_module(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile in a process without the interpreter and with an empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    command = [sys.executable, "-m", "tests.arena.compile_for_hip", module, *ARCHITECTURES]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False)


def compiled(child: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert child.returncode == 0, child.stderr
    return [json.loads(line) for line in child.stdout.splitlines()]


def test_every_kernel_compiles_for_both_in_every_choice(tmp_path: Path) -> None:
    found = compiled(compile_module("kvverify.arena.payload_triton", tmp_path))
    kernels = {entry["kernel"] for entry in found}
    assert {"check", "fill"} <= kernels
    assert {(e["kernel"], e["arch"]) for e in found} == {(k, arch) for k in kernels for arch in ARCHITECTURES}
    assert {e["constants"]["UNIT"] for e in found if e["kernel"] == "check"} == {1, 8}
    assert [entry for entry in found if entry["spills"]] == []


def test_what_only_cuda_can_do_is_found(tmp_path: Path) -> None:
    (tmp_path / "toy_kernel.py").write_text(TOY)
    assert {entry["arch"] for entry in compiled(compile_module("toy_kernel", tmp_path))} == set(ARCHITECTURES)
    (tmp_path / "toy_for_cuda.py").write_text(TOY.replace('"CUDA": 0', '"CUDA": 1'))
    child = compile_module("toy_for_cuda", tmp_path)
    assert child.returncode != 0
    assert child.stdout == ""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{"toy": {', '{"other": {', "['toy'] launched, ['other'] exported"),
        ('"count": "i32", ', "", "toy: arguments ['data', 'count', 'SIZE', 'CUDA'], not ['data', 'SIZE', 'CUDA']"),
    ],
)
def test_a_kernel_that_is_not_exported_is_found(tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "toy_unknown.py").write_text(TOY.replace(old, new))
    assert words in compile_module("toy_unknown", tmp_path).stderr
