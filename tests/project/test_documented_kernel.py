"""The kernel in docs/write-an-adapter-for-my-kernel.md works as it stands, and is found out with one line broken."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.project.documents import blocks, sessions

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "write-an-adapter-for-my-kernel.md"
STORE_LINE = "host.copy_(page.contiguous().view(torch.uint8).flatten())"
LOAD_LINE = "page.copy_(host.view(page.dtype).view(page.shape))"


def documented_kernel() -> str:
    """Return the source of the kernel in the page."""
    (source,) = [block.text for block in blocks(PAGE) if block.marks == ("my_kernel.py",)]
    return source


def verify(folder: Path, source: str, examples: int = 30) -> subprocess.CompletedProcess[str]:
    """Run the command of the page on a kernel in a file outside the repository."""
    (folder / "my_kernel.py").write_text(source)
    command = [sys.executable, "-m", "kvverify", "roundtrip", "--kernel", "my_kernel.py:MyKernel", "--seed", "1"]
    return subprocess.run(
        [*command, "--examples", str(examples), "--out", "run"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_session_is_named_in_the_noxfiles_docstring() -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / "noxfile.py").read_text())) or ""
    assert {name for name in sessions() if name not in docstring} == set()


def test_the_documented_kernel_is_verified(torch: ModuleType, tmp_path: Path) -> None:
    ended = verify(tmp_path, documented_kernel())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "PASS" in ended.stdout


@pytest.mark.parametrize(
    ("line", "broken", "diagnosis"),
    [
        (STORE_LINE, f"host[:-6].copy_({STORE_LINE[11:-1]}[:-6])", r"wrong bytes: .* bytes .*\d+-\d+ of the cell"),
        (LOAD_LINE, "pass", r"wrong bytes: .* previous occupant"),
        (
            LOAD_LINE,
            LOAD_LINE.replace("page.copy_(", "page[:, :1].copy_(").replace("page.shape)", "page.shape)[:, :1]"),
            "",
        ),
    ],
    ids=["tail cut", "nothing loaded", "one head only"],
)
def test_the_documented_kernel_with_one_line_broken_fails(
    torch: ModuleType, tmp_path: Path, line: str, broken: str, diagnosis: str
) -> None:
    source = documented_kernel()
    assert line in source
    ended = verify(tmp_path, source.replace(line, broken))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "FAIL" in ended.stdout
    assert re.search(diagnosis, ended.stdout)
    assert "kvverify replay run/failures/" in ended.stdout
