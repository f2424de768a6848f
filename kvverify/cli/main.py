"""The ``kvverify`` command: a table of commands, each loaded on use, and the edge where errors become exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click

from kvverify.errors import KvverifyError
from kvverify.events import EXIT_CODES, EXIT_INTERRUPTED, Verdict

# name -> (module that holds `command`, help line). The help line stands here so that `kvverify --help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "layout": ("kvverify.cli.layout", "Show which byte of a model's KV cache is what."),
    "kernels": ("kvverify.cli.kernels", "List the copy kernels that run here, and why others do not."),
    "roundtrip": ("kvverify.cli.roundtrip", "Fuzz copy kernels and compare every byte of the allocation."),
    "codecs": ("kvverify.cli.codecs", "Hold quantisation kernels against the reference; show what each format costs."),
    "selftest": ("kvverify.cli.selftest", "Plant every known fault and show which check kills it."),
    "tier-diff": ("kvverify.cli.tier_diff", "Compare a live server's answers from HBM with those from a lower tier."),
    "isolation": ("kvverify.cli.isolation", "Show that no session of a live server finds another's content."),
    "doctor": (
        "kvverify.cli.doctor",
        "Find configuration faults of a live server that make a cache or a test useless.",
    ),
    "accuracy": (
        "kvverify.cli.accuracy",
        "Measure what a KV format or a tier costs in accuracy, sample by sample.",
    ),
    "replay": ("kvverify.cli.replay", "Run the sequence of a failure file again."),
    "lab": ("kvverify.cli.lab", "Serve a small model with a tiered KV cache, to try kvverify on; no serving engine."),
    "demo": ("kvverify.cli.demo", "Show all of it against the lab, without a GPU, in about two minutes."),
    "report": ("kvverify.cli.report", "Make the reports of a run again, or the sign-off of several by a policy."),
    "diff": ("kvverify.cli.diff", "Show what got better, worse, newly covered or lost between two releases."),
    "verify-report": ("kvverify.cli.verify_report", "Find any change to a sign-off or to what it rests on."),
}

EPILOG = "Exit codes: 0 pass, 1 a check failed, 2 usage or environment error, 3 inconclusive or nothing ran, 130 interrupted."


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, so that help and typing mistakes cost no import."""

    table: ClassVar[Mapping[str, tuple[str, str]]] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, None where there is none of this name."""
        if cmd_name not in self.table:
            return None
        command: click.Command = importlib.import_module(self.table[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but name the nearest commands where there is none."""
        if args and not args[0].startswith("-") and args[0] not in self.table:
            from kvverify.errors import nearest

            raise click.UsageError(f"no command {args[0]!r}; {nearest(args[0], self.table)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import kvverify

        click.echo(f"kvverify {kvverify.__version__}")
        ctx.exit(0)


@click.command(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Verify KV-cache copies, tiers and quantised formats against real software."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; a command's own return value is its exit code (None is 0).

    Every error leaves here as one line on standard error. An unexpected one is a defect of kvverify: it keeps its traceback
    and ends with 2, since 1 means that a check failed.
    """
    try:
        code: Any = cli.main(
            args=None if argv is None else list(argv),
            prog_name="kvverify",
            standalone_mode=False,
            auto_envvar_prefix="KVVERIFY",
        )
    except KvverifyError as error:
        return _complain(str(error), error.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "kvverify"
        return _complain(f"{error.format_message()} (see {where} --help)")
    except click.ClickException as error:
        return _complain(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # the reader of our output is gone; the interpreter must not meet that again when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CODES[Verdict.ERROR]
    except Exception as error:  # noqa: BLE001 - process edge: Python's own exit code 1 would read as a failed check
        import traceback

        traceback.print_exc()
        return _complain(f"internal error, please report it: {type(error).__name__}: {error}")
    return code if isinstance(code, int) else 0


def _complain(text: str, code: int = EXIT_CODES[Verdict.ERROR]) -> int:
    print(f"kvverify: {' '.join(text.split())}", file=sys.stderr)
    return code


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run())
