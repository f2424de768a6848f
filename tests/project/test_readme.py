"""What README.md and CONTRIBUTING.md tell people to type exists, and the kernel in the README works as it stands."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from kvverify.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
STORE_LINE = "host.copy_(page.contiguous().view(torch.uint8).flatten())"
LOAD_LINE = "page.copy_(host.view(page.dtype).view(page.shape))"


def commands(program: str) -> list[list[str]]:
    """Return the words of every line in a code block, or of inline code in one, that calls ``program``."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        blocks = re.findall(r"^    (?=\S)(.+)$", text, re.MULTILINE)
        inline = re.findall(r"`([^`\n]+)`", text)
        parts = [part for line in (*blocks, *inline) for part in re.split(r"\s*&&\s*", line)]
        found += [
            shlex.split(part.removeprefix("python -m "), comments=True)[1:]
            for part in parts
            if re.match(rf"(?:python -m )?{program} ", part)
        ]
    return found


def sessions() -> set[str]:
    """Return the names of the functions in noxfile.py that are sessions."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("session" in ast.unparse(d) for d in node.decorator_list)
    }


def readme_kernel() -> str:
    """Return the source of the kernel in the README."""
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(source)


def verify(folder: Path, source: str, examples: int = 30) -> subprocess.CompletedProcess[str]:
    """Run the command of the README on a kernel in a file outside the repository."""
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


def test_the_documents_name_commands() -> None:
    assert len(commands("kvverify")) >= 8
    assert len(commands("nox")) >= 4


@pytest.mark.parametrize("words", commands("kvverify"), ids=" ".join)
def test_every_kvverify_command_in_the_documents_exists(words: list[str]) -> None:
    name, *rest = words
    if name == "--help":
        return
    assert name in COMMANDS
    command: click.Command = importlib.import_module(COMMANDS[name][0]).command
    if isinstance(command, click.Group) and rest:
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None
        command = found
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in rest if word.startswith("--")} <= known


@pytest.mark.parametrize("words", commands("nox"), ids=" ".join)
def test_every_nox_session_in_the_documents_exists(words: list[str]) -> None:
    named = words[words.index("-s") + 1 :]
    if "--" in named:
        named = named[: named.index("--")]
    assert named
    assert set(named) <= sessions()


def test_every_session_is_named_in_the_noxfiles_docstring() -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / "noxfile.py").read_text())) or ""
    assert {name for name in sessions() if name not in docstring} == set()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()))
def test_every_link_of_the_readme_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_the_kernel_in_the_readme_is_verified(torch: ModuleType, tmp_path: Path) -> None:
    ended = verify(tmp_path, readme_kernel())
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
def test_the_kernel_in_the_readme_with_one_line_broken_fails(
    torch: ModuleType, tmp_path: Path, line: str, broken: str, diagnosis: str
) -> None:
    source = readme_kernel()
    assert line in source
    ended = verify(tmp_path, source.replace(line, broken))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "FAIL" in ended.stdout
    assert re.search(diagnosis, ended.stdout)
    assert "kvverify replay run/failures/" in ended.stdout
