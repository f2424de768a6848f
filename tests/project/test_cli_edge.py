"""The edge of the command line: every outcome becomes one line and the documented exit code."""

from __future__ import annotations

import importlib

import click
import pytest

from kvverify.cli import main as edge
from kvverify.cli.options import run_options, sources
from kvverify.errors import EnvironmentProblem, LayoutError


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> type[Ending]:
    """Replace the command `report` by one that ends as the test says."""

    def get_command(_self: edge.LazyGroup, _ctx: click.Context, name: str) -> click.Command | None:
        return Ending.command if name == "report" else None

    monkeypatch.setattr(edge.LazyGroup, "get_command", get_command)
    return Ending


class Ending:
    """How the replaced command ends: an exception to raise, or a value to return."""

    outcome: BaseException | int | None = None

    @click.command()
    @staticmethod
    def command() -> int | None:
        if isinstance(Ending.outcome, BaseException):
            raise Ending.outcome
        return Ending.outcome


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_a_returned_number_is_the_exit_code(ending: type[Ending], code: int) -> None:
    ending.outcome = code
    assert edge.run(["report"]) == code


def test_returning_nothing_is_success(ending: type[Ending]) -> None:
    ending.outcome = None
    assert edge.run(["report"]) == 0


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        (LayoutError("layer 3: head size 80"), 2, "kvverify: layer 3: head size 80\n"),
        (EnvironmentProblem("two\nlines"), 2, "kvverify: two lines\n"),
        (KeyboardInterrupt(), 130, "kvverify: interrupted\n"),
        (click.Abort(), 130, "kvverify: interrupted\n"),
        (click.ClickException("no such thing"), 2, "kvverify: no such thing\n"),
    ],
)
def test_an_error_is_one_line(
    ending: type[Ending], capsys: pytest.CaptureFixture[str], outcome: BaseException, code: int, line: str
) -> None:
    ending.outcome = outcome
    assert edge.run(["report"]) == code
    assert capsys.readouterr().err.lstrip("\n") == line


def test_a_defect_of_ours_keeps_its_traceback_and_is_not_a_failed_check(
    ending: type[Ending], capsys: pytest.CaptureFixture[str]
) -> None:
    ending.outcome = ZeroDivisionError("x")
    assert edge.run(["report"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("kvverify: internal error, please report it: ZeroDivisionError: x\n")


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["roundtripp"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvverify: no command 'roundtripp'; did you mean 'roundtrip'? valid: accuracy, codecs, ")
    assert err.count("\n") == 1


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["--colour"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvverify: No such option")
    assert "--colour" in err
    assert err.endswith("(see kvverify --help)\n")


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in edge.COMMANDS)
    assert "Exit codes" in text
    assert edge.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvverify ")


@pytest.mark.parametrize("name", edge.COMMANDS)
def test_every_command_exists_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = importlib.import_module(edge.COMMANDS[name][0]).command
    assert isinstance(command, click.Command)
    assert command.help
    assert edge.run([name, "--help"]) == 0
    assert f"Usage: kvverify {name}" in capsys.readouterr().out


def test_shared_options_and_where_their_values_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    @click.command()
    @run_options
    @click.pass_context
    def command(ctx: click.Context, /, **_values: object) -> None:
        seen.update(sources(ctx))

    monkeypatch.setenv("T_SEED", "7")
    command.main(["--json"], standalone_mode=False, auto_envvar_prefix="T")
    assert seen == {"out": "default", "resume": "default", "seed": "environment", "as_json": "command line"}
