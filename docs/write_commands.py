"""Write docs/commands.md, the command reference, from the commands themselves: `nox -s docs`, or `python docs/write_commands.py`.

It is made from the options' declarations and not from the text of --help, whose line breaks change with click's version.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from kvverify.cli.main import EPILOG, cli

TARGET = Path(__file__).with_name("commands.md")
HEAD = f"""\
# Commands

Written by `nox -s docs` from the commands' own help; a test keeps it up to date. Each option can also be set by an environment
variable: `KVVERIFY_`, the command, the option, in capitals with underscores (`KVVERIFY_ROUNDTRIP_BUDGET=60s`).

{EPILOG}
"""


def reference() -> str:
    """Return the whole page."""
    found = list(_commands(cli, ["kvverify"], click.Context(cli, info_name="kvverify")))
    index = [f"* [`{' '.join(names)}`](#{'-'.join(names)}): {_summary(command)}" for names, command in found]
    return "\n".join([HEAD, *index, "", *(_section(names, command) for names, command in found)])


def _commands(
    group: click.Group, names: list[str], context: click.Context
) -> Iterator[tuple[list[str], click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, [*names, name], click.Context(command, parent=context, info_name=name))
        else:
            yield [*names, name], command


def _section(names: list[str], command: click.Command) -> str:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    usage = " ".join([*names, *(["[OPTIONS]"] if options else []), *(_argument(a) for a in arguments)])
    rows = ["| option | default | |", "|---|---|---|", *(_row(option) for option in options)] if options else []
    return "\n".join([f"## {' '.join(names)}", "", f"    {usage}", "", _help(command), "", *rows, ""])


def _help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").split("\f")[0].replace("\b\n", "")
    return "\n\n".join(" ".join(_escaped(paragraph).split()) for paragraph in text.split("\n\n"))


def _summary(command: click.Command) -> str:
    return _help(command).split("\n\n")[0]


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _row(option: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in sorted(option.opts, key=len))
    value = "" if option.is_flag or option.count else option.metavar or _type_name(option)
    again = " Repeatable." if option.multiple and "epeat" not in (option.help or "") else ""
    bounds = option.type._describe_range() if isinstance(option.type, click.IntRange | click.FloatRange) else ""
    limits = f" ({bounds})" if bounds and bounds != "x>=0" else ""
    text = _escaped(option.help or "") + ("" if not option.required else " Required.")
    return f"| {flags}{f' {_escaped(value)}' if value else ''} | {_default(option)} | {' '.join(text.split())}{again}{limits} |"


def _type_name(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return option.type.name.upper()


def _default(option: click.Option) -> str:
    if option.is_flag or not option.show_default:
        return ""
    value = option.show_default if isinstance(option.show_default, str) else option.default
    shown = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return f"{shown}"


def _escaped(text: str) -> str:
    """Return ``text`` for a Markdown table: a bar would end the cell, a tag would vanish."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    TARGET.write_text(reference())
