"""``kvverify accuracy``: measure arms, compare them, and tell beforehand how many samples that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click

from kvverify.cli.main import LazyGroup


class _Accuracy(LazyGroup):
    table: ClassVar[Mapping[str, tuple[str, str]]] = {
        "plan": ("kvverify.cli.accuracy_plan", "Tell how many samples a claim needs, and what suites can show."),
        "run": ("kvverify.cli.accuracy_run", "Ask a server a suite and score its answers: one arm."),
        "compare": ("kvverify.cli.accuracy_compare", "Compare arms pair by pair: neutral, harmful, or not known."),
    }


@click.command("accuracy", cls=_Accuracy)
def command() -> None:
    """Measure what a KV format or a tier costs in accuracy, with statistics that can say no."""
