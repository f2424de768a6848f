"""The commands in the documents: where they stand, what each is marked as, and how they are parsed without being run.

A fence of ```sh holds commands. Unmarked ones are run by test_documents.py, in the order of the page; a word behind `sh` says otherwise:

    gpu, rocm, server   parsed only: needs what a test machine does not have
    lab                 run in the background until the page ends
    exits N             run; the last command must end with this code
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest

from kvverify.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = ROOT / "docs" / "commands.md"  # generated; it holds usages and no commands
PARSED_ONLY = {"gpu", "rocm", "server"}
_FENCE = re.compile(r"^```(\S*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fence: its language, the words behind it, its text, and the line that it begins in."""

    page: Path
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """Return the words of each command; lines are split at ``&&`` and comments dropped."""
        if self.language != "sh":
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        parts = [part for line in lines for part in re.split(r"\s&&\s", line)]
        return [words for part in parts if (words := shlex.split(part, comments=True))]

    @property
    def parsed_only(self) -> bool:
        """Whether no test runs it."""
        return not PARSED_ONLY.isdisjoint(self.marks)

    @property
    def exit_code(self) -> int:
        """The code that its last command ends with."""
        return int(self.marks[self.marks.index("exits") + 1]) if "exits" in self.marks else 0


def blocks(page: Path) -> list[Block]:
    """Return all fences of a page."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m[1], tuple(m[2].split()), m[3]) for m in _FENCE.finditer(text)
    ]


def inline(program: str, pages: list[Path]) -> list[tuple[str, list[str]]]:
    """Return page and words of inline code that calls ``program``, in tables too; words that stand for something stay in."""
    found = []
    for page in pages:
        prose = _FENCE.sub("", page.read_text())
        calls = re.findall(rf"`(?:python -m )?({program} [^`\n]+)`", prose)
        found += [(page.name, shlex.split(call.replace("…", ""), comments=True)) for call in calls]
    return found


def parse(words: list[str]) -> None:
    """Let the command line parse ``kvverify WORDS`` without running anything; files need not exist.

    Raises:
        click.UsageError: what a user would be told.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click.Path, "convert", lambda _self, value, _param, _ctx: Path(value))
        context = click.Context(cli, info_name="kvverify")
        command: click.Command = cli
        rest = list(words)
        while isinstance(command, click.Group):
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None, name
            command = found
            if isinstance(command, click.Group):
                context = click.Context(command, parent=context, info_name=name)
        try:
            command.make_context(words[0], rest, parent=context)
        except click.exceptions.Exit:  # --help
            return


def known_options(words: list[str]) -> set[str]:
    """Return the options among ``kvverify WORDS`` that the command does not have; for prose, where values are left out."""
    context, rest = click.Context(cli), list(words)
    command: click.Command = cli
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    return {word.split("=")[0] for word in rest if word.startswith("--")} - known


@cache
def sessions() -> dict[str, ast.FunctionDef]:
    """Return the sessions of noxfile.py by name."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {f.name: f for f in functions if any("session" in ast.unparse(d) for d in f.decorator_list)}


def parse_nox(words: list[str]) -> None:
    """Check ``nox WORDS``: sessions exist, and what comes behind ``--`` is what the session passes on."""
    own, passed = _split(words, "--")
    assert own[0] == "-s", words
    assert own[1:], words
    assert set(own[1:]) <= set(sessions()), words
    if not passed:
        return
    (name,) = own[1:]
    assert "posargs" in ast.unparse(sessions()[name]), f"{name} takes no arguments"
    if name == "roundtrip":
        parse(["roundtrip", *passed])
    elif name == "browser":
        assert passed[0] == "--screenshots"
    else:
        assert all(word.startswith("-") or (ROOT / word.split("::")[0]).exists() for word in passed[:1]), words


def parse_other(words: list[str]) -> None:
    """Check a command of another program as far as that goes without it; an unknown program fails."""
    program, *rest = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    match program, rest:
        case "pip", ["install", *wanted]:
            _check_extras(wanted)
        case "python", ["-m", "pip", "install", *wanted]:
            _check_extras(wanted)
        case "python", ["-m", "nox", *own]:
            parse_nox(own)
        case "python", ["-m", "pytest", *own]:
            assert all((ROOT / word).exists() for word in own if not word.startswith("-")), words
        case "python", ["-m", module, *own]:
            source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
            assert [w for w in own if w.startswith("--") and f'"{w}"' not in source] == [], words
        case "python", ["-c", source]:
            compile(source, "-c", "exec")
        case "python", [script] if script.startswith("results/"):
            compile((ROOT / script).read_text(), script, "exec")
        case ".", [".nox/stacks/bin/activate"]:
            assert '".nox" / "stacks"' in (ROOT / "noxfile.py").read_text()
        case (("vllm" | "lmcache"), _):
            for word in rest:
                if word.startswith("{"):
                    json.loads(word)
        case "ssh-keygen", _:
            pass  # run where it is installed
        case _:
            raise AssertionError(f"unknown program: {shlex.join(words)}")


def _check_extras(wanted: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in wanted:
        for extras in re.findall(r"\[([^\]]+)\]", word):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), word


def _split(words: list[str], at: str) -> tuple[list[str], list[str]]:
    return (words[: words.index(at)], words[words.index(at) + 1 :]) if at in words else (words, [])
