"""What works on CUDA alone stays inside the kernel adapters: everything else has to run on ROCm, which nobody here can try.

``torch.cuda`` and Triton are ROCm's too, under the same names. So are the few calls of ``torch.cuda.cudart()`` named below, which
torch binds to HIP's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_source import ROOT, tracked_files

ADAPTERS = ROOT / "kvverify" / "kernels"
PYTHON = [
    path
    for folder in ("kvverify", "fuzz", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ADAPTERS not in path.parents
]
MODULES = re.compile(
    r"(cupy|cuda|pynvml|nvtx|pycuda|cutlass|numba\.cuda|torch\.cuda\.nvtx|triton\.language\.extra\.cuda)(\.|$)"
)
LIBRARIES = re.compile(r"lib(cuda|cudart|nvrtc|nvidia-ml|nvToolsExt)\b|nvidia-smi|\.(ptx|cubin)\b|/proc/driver/nvidia")
CALLS = re.compile(r"cu(da)?[A-Z]\w*|nvrtc\w+|inline_asm_elementwise|nvtx")
PORTABLE = {"cudaHostRegister", "cudaHostUnregister", "cudaMemGetInfo", "cudaGetErrorString"}
SOURCES = {".cu", ".cuh", ".ptx", ".cubin"}


def cuda_only(source: str) -> list[str]:
    """Return what of a Python module works on CUDA alone, each with its line."""
    tree = ast.parse(source)
    return [f"{line}: {what}" for line, what in sorted({*_names(tree), *_conditions(tree)})]


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, a.name) for a in aliases if MODULES.match(a.name))
            case ast.ImportFrom(module=str(module), level=0, names=aliases):
                full = [module, *(f"{module}.{a.name}" for a in aliases)]
                yield from ((node.lineno, name) for name in full if MODULES.match(name))
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                # the name of a module may be handed to import_module; "cuda" alone is torch's name of a device
                if LIBRARIES.search(text) or (text != "cuda" and MODULES.match(text) and "cuda:" not in text):
                    yield node.lineno, text
            case ast.Attribute(attr=name) | ast.Name(id=name):
                if CALLS.fullmatch(name) and name not in PORTABLE:
                    yield node.lineno, name


def _conditions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Decisions that ask which CUDA torch was built for and not which HIP: None there says «ROCm», not «no GPU»."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
                asked = ast.unparse(test)
            case ast.BoolOp() | ast.Compare() | ast.UnaryOp(op=ast.Not()):
                asked = ast.unparse(node)
            case ast.Call(func=ast.Name(id="bool")):
                asked = ast.unparse(node)
            case _:
                continue
        if "version.cuda" in asked and "hip" not in asked and not _within_hip(tree, node):
            yield node.lineno, asked


def _within_hip(tree: ast.AST, inner: ast.AST) -> bool:
    """Is ``inner`` part of a larger condition that asks for HIP as well?"""
    larger = (n for n in ast.walk(tree) if isinstance(n, ast.BoolOp | ast.IfExp) and n is not inner)
    return any("hip" in ast.unparse(n) and any(part is inner for part in ast.walk(n)) for n in larger)


@pytest.mark.parametrize("path", [*PYTHON, ROOT / "noxfile.py"], ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_outside_the_adapters_works_on_cuda_alone(path: Path) -> None:
    assert cuda_only(path.read_text()) == []


def test_no_adapter_takes_rocm_for_no_gpu() -> None:
    found = {str(p.relative_to(ROOT)): list(_conditions(ast.parse(p.read_text()))) for p in ADAPTERS.rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_cuda_source_is_in_the_tree() -> None:
    assert [
        str(p.relative_to(ROOT)) for p in tracked_files() if p.suffix in SOURCES and ADAPTERS not in p.parents
    ] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import cupy", "1: cupy"),
        ("import cupy as cp", "1: cupy"),
        ("from cuda.bindings import driver", "1: cuda.bindings"),
        ("from cuda import bindings", "1: cuda"),
        ("def f():\n    import pynvml", "2: pynvml"),
        ("from torch.cuda import nvtx", "1: torch.cuda.nvtx"),
        ("importlib.import_module('cuda.bindings.driver')", "1: cuda.bindings.driver"),
        ("ctypes.CDLL('libcuda.so.1')", "1: libcuda.so.1"),
        ("ctypes.CDLL(f'{folder}/libcudart.so')", "1: /libcudart.so"),
        ("subprocess.run(['nvidia-smi', '-q'])", "1: nvidia-smi"),
        ("driver.cuMemcpyBatchAsync(a, b)", "1: cuMemcpyBatchAsync"),
        ("torch.cuda.cudart().cudaMemcpyAsync(a, b)", "1: cudaMemcpyAsync"),
        ("tl.inline_asm_elementwise('xor.b32', '=r', [x])", "1: inline_asm_elementwise"),
        ("if torch.version.cuda is None:\n    raise NoGpu", "1: torch.version.cuda is None"),
        ("x = 1 if torch.version.cuda else 2", "1: torch.version.cuda"),
        ("gpu = torch.version.cuda is not None and big", "1: torch.version.cuda is not None"),
        ("gpu = not torch.version.cuda", "1: not torch.version.cuda"),
    ],
)
def test_what_works_on_cuda_alone_is_found(source: str, found: str) -> None:
    assert found in cuda_only(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch.cuda\ntorch.cuda.synchronize()",
        "from torch.cuda import Stream",
        "torch.zeros(1, device='cuda')",
        "device = 'cuda:0'",
        "torch.cuda.cudart().cudaHostRegister(address, size, 0)",
        "if torch.version.cuda is None and torch.version.hip is None:\n    raise NoGpu",
        "built = torch.version.hip or torch.version.cuda",
        "facts = {'cuda': torch.version.cuda}",
        '"""Not cupy, nor libcuda.so."""',
        "curly = cut = accumulate = 1",
    ],
)
def test_what_rocm_has_too_is_left_alone(source: str) -> None:
    assert cuda_only(source) == []
