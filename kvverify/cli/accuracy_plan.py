"""``kvverify accuracy plan``: how many samples it takes, before a server is asked anything."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import click

from kvverify.cli.accuracy_compare import require_scipy
from kvverify.cli.options import alpha_option, json_option, margin_option, power_option

if TYPE_CHECKING:
    from kvverify.accuracy.plan import AccuracyPlan, Shows
    from kvverify.report.section import Section


@click.command("plan")
@margin_option
@alpha_option
@power_option
@click.option(
    "--discordance",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.02,
    show_default=True,
    metavar="PSI",
    help="Share of the answers that change from right to wrong or back; from a pilot that is not used again.",
)
@click.option(
    "--loss",
    type=click.FloatRange(0, 100, max_open=True),
    default=0.0,
    show_default=True,
    metavar="POINTS",
    help="True loss at which the claim shall still be shown.",
)
@click.option("--suite", metavar="NAME", help="Also tell what this suite can show.")
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Also tell what so many samples can show.")
@json_option
def command(**given: Any) -> int:
    """Tell how many samples a claim needs, and which margin suites of known sizes can show.

    Numbers are of samples that share no document or haystack; where they do, multiply them by the design effect that a comparison
    reports.
    """
    require_scipy()
    from rich.console import Console

    from kvverify.accuracy.plan import Question, accuracy_plan
    from kvverify.report.final import json_line, section_table

    known = {name: given[name] for name in ("alpha", "power", "discordance")}
    question = Question(margin=given["margin"] / 100, loss=given["loss"] / 100, **known)
    plan = accuracy_plan(question, _own(given["suite"], given["samples"]))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=1000)
    for section in _sections(plan):
        console.print(section_table(section))
        console.print(section.caption, soft_wrap=True)
        console.print()
    if given["as_json"]:
        click.echo(json_line(plan.to_json()))
    return 0


def _own(suite: str | None, samples: int | None) -> dict[str, int]:
    own = {}
    if suite is not None:
        from kvverify.accuracy.plan import suite_size
        from kvverify.accuracy.suite import load_suite

        found = load_suite(suite)
        own[f"suite {found.name}"] = suite_size(found.reduced(samples=samples).tasks)
    elif samples is not None:
        own[f"{samples:,} samples"] = samples
    return own


def _sections(plan: AccuracyPlan) -> list[Section]:
    from kvverify.report.section import Section
    from kvverify.verdicts_compare import in_points

    q = plan.question
    shares = [n.discordance for n in plan.needed]
    claim = f"a loss of less than {in_points(q.margin)}"
    truth = f"a true loss of {in_points(q.loss)}" if q.loss else "no true loss"
    designs = ["not worse", "at half of alpha", "neither worse nor better", "detects a loss"]
    needed = Section(
        f"Samples that show {claim} with power {q.power:.0%} at {truth}",
        f"Never fewer than {plan.least_pairs:,}, even if no answer changes. The first column is the claim of accuracy compare, at alpha "
        f"{q.alpha:g}, sized by the test that decides; beside it in brackets what the textbook says, whose number is too small where few "
        f"answers change. The last column is what it takes to detect a loss of {in_points(q.margin)} by McNemar's test.",
        ["discordance", *designs],
        [
            [
                _percent(n.discordance),
                *(_count(*pair) for pair in zip(astuple(n.test), astuple(n.textbook), strict=True)),
            ]
            for n in plan.needed
        ],
        frozenset(range(5)),
    )
    sizes = Section(
        f"Smallest margin in points that can be shown with power {q.power:.0%}, by discordance",
        f"In brackets by the textbook. The last column is the chance of showing {claim} at a discordance of {_percent(q.discordance)}.",
        ["samples of", "number", *map(_percent, shares), f"power at {_percent(q.discordance)}"],
        [[s.name, f"{s.pairs:,}", *(_margin(s, psi) for psi in shares), f"{s.power:.0%}"] for s in plan.sizes],
        frozenset(range(1, 3 + len(shares))),
    )
    return [needed, sizes]


def _margin(size: Shows, discordance: float) -> str:
    if discordance not in size.smallest_margin:
        return "–"
    return f"{100 * size.smallest_margin[discordance]:.2f} ({100 * size.textbook_margin[discordance]:.2f})"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _count(test: int | None, textbook: int | None) -> str:
    if test is None or textbook is None:
        return "–"
    return f"{test:,}" if test == textbook else f"{test:,} ({textbook:,})"
