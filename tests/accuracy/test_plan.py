"""What ``accuracy plan`` tells: published sizes, powers and margins, and what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("scipy")

from hypothesis import given
from hypothesis import strategies as st

from kvverify.accuracy.plan import Question, accuracy_plan
from kvverify.cli.main import run

SUITE = """
name = "own"
kind = "short"
[[tasks]]
source = "items"
name = "a"
samples = 40
lengths = [4096, 8192]
[[tasks]]
source = "items"
name = "b"
samples = {samples}
"""


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """Run the command and return the document of its last line."""
    assert run(["accuracy", "plan", "--json", *words]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


@pytest.mark.parametrize(
    ("power", "discordance", "needed"),
    [
        ("0.8", "0.01", (619, 785, 857, 783)),
        ("0.8", "0.02", (1237, 1570, 1713, 1568)),
        ("0.8", "0.03", (1855, 2355, 2570, 2353)),
        ("0.8", "0.05", (3092, 3925, 4282, 3923)),
        ("0.8", "0.1", (6183, 7849, 8564, 7847)),
        ("0.9", "0.01", (857, 1051, 1083, 1047)),
        ("0.9", "0.02", (1713, 2102, 2165, 2098)),
        ("0.9", "0.1", (8564, 10508, 10823, 10504)),
    ],
)
def test_published_sizes_at_a_margin_of_one_point(
    capsys: pytest.CaptureFixture[str], power: str, discordance: str, needed: tuple[int, ...]
) -> None:
    found = plan(capsys, "--power", power)["needed"]
    assert isinstance(found, list)
    row = next(n for n in found if n["discordance"] == float(discordance))
    textbook = row["textbook"]
    assert tuple(textbook[name] for name in ("non_inferiority", "half_alpha", "tost", "mcnemar")) == needed
    test = row["test"]
    assert all(test[name] > textbook[name] for name in ("non_inferiority", "half_alpha", "tost"))
    assert test["mcnemar"] == textbook["mcnemar"]


@pytest.mark.parametrize(
    ("margin", "discordance", "eighty", "ninety"),
    [(0.5, 0.01, 2474, 3426), (0.5, 0.1, 24731, 34256), (2, 0.02, 310, 429), (3, 0.05, 344, 476), (3, 0.1, 687, 952)],
)
def test_published_sizes_at_other_margins(margin: float, discordance: float, eighty: int, ninety: int) -> None:
    for power, pairs in ((0.8, eighty), (0.9, ninety)):
        question = Question(margin=margin / 100, alpha=0.05, power=power, discordance=discordance)
        found = {n.discordance: n.textbook.non_inferiority for n in accuracy_plan(question, {}).needed}
        assert found[discordance] == pairs


@pytest.mark.parametrize(
    ("discordance", "eighty", "ninety"), [(0.02, 2523, 3494), (0.03, 3785, 5242), (0.05, 6308, 8738)]
)
def test_published_sizes_at_a_true_loss(discordance: float, eighty: int, ninety: int) -> None:
    for power, pairs in ((0.8, eighty), (0.9, ninety)):
        question = Question(margin=0.01, alpha=0.05, power=power, discordance=discordance, loss=0.003)
        found = {n.discordance: n.textbook.non_inferiority for n in accuracy_plan(question, {}).needed}
        assert found[discordance] == pairs


@pytest.mark.parametrize(
    ("name", "margins"),
    [
        ("GPQA-Diamond", (1.8, 2.5, 3.1, 4.0, 5.6)),
        ("one RULER task", (1.1, 1.6, 1.9, 2.5, 3.5)),
        ("GSM8K", (0.68, 0.97, 1.2, 1.5, 2.2)),
        ("RULER, one length, 13 tasks of 500", (0.31, 0.44, 0.53, 0.69, 0.98)),
        ("MMLU", (0.21, 0.30, 0.36, 0.47, 0.66)),
    ],
)
def test_published_smallest_margins(name: str, margins: tuple[float, ...]) -> None:
    question = Question(margin=0.01, alpha=0.05, power=0.8, discordance=0.02)
    (size,) = [s for s in accuracy_plan(question, {}).sizes if s.name == name]
    found = [100 * m for m in size.textbook_margin.values()]
    assert [float(f"{m:.2g}") for m in found] == list(margins)


@pytest.mark.parametrize(("discordance", "powers"), [(0.02, (0.44, 0.79, 0.98, 1.0)), (0.05, (0.25, 0.48, 0.78, 0.97))])
def test_published_powers(discordance: float, powers: tuple[float, ...]) -> None:
    question = Question(margin=0.01, alpha=0.05, power=0.8, discordance=discordance)
    own = {str(n): n for n in (500, 1319, 3000, 6500)}
    found = {s.name: s.power for s in accuracy_plan(question, own).sizes}
    assert [found[name] for name in own] == pytest.approx(powers, abs=0.02)


def test_a_gate_of_fifty_questions_shows_nothing() -> None:
    sizes = accuracy_plan(Question(margin=0.01, alpha=0.05, power=0.8, discordance=0.02), {}).sizes
    (gate,) = [s for s in sizes if s.pairs == 50]
    assert gate.power == 0.0
    assert min(gate.smallest_margin.values()) > 0.05


@given(st.floats(0.001, 0.2), st.floats(0.01, 0.4), st.floats(0.5, 0.99))
def test_what_is_needed_is_what_shows_the_margin(margin: float, discordance: float, power: float) -> None:
    question = Question(margin=margin, alpha=0.05, power=power, discordance=discordance)
    found = next(n for n in accuracy_plan(question, {}).needed if n.discordance == discordance)
    assert found.test.non_inferiority is not None
    assert found.textbook.non_inferiority is not None
    assert found.test.non_inferiority >= found.textbook.non_inferiority
    own = accuracy_plan(question, {"own": found.test.non_inferiority}).sizes
    (size,) = [s for s in own if s.name == "own"]
    assert size.smallest_margin[discordance] <= margin * (1 + 1e-6)
    assert size.textbook_margin[discordance] <= size.smallest_margin[discordance] * (1 + 1e-6)


@pytest.mark.parametrize("discordance", [0.01, 0.02, 0.05])
def test_the_headline_number_reaches_the_stated_power_and_the_textbook_s_does_not(discordance: float) -> None:
    question = Question(margin=0.01, alpha=0.05, power=0.8, discordance=discordance)
    needed = next(n for n in accuracy_plan(question, {}).needed if n.discordance == discordance)
    own = {"test": needed.test.non_inferiority or 0, "textbook": needed.textbook.non_inferiority or 0}
    powers = {s.name: s.power for s in accuracy_plan(question, own).sizes}
    assert powers["test"] >= 0.79
    assert powers["textbook"] < 0.8
    assert powers["textbook"] < powers["test"]


def test_a_suite_is_told_by_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text(SUITE.format(samples=20))
    sizes = plan(capsys, "--suite", str(path))["sizes"]
    assert isinstance(sizes, list)
    assert [s["pairs"] for s in sizes if s["name"] == "suite own"] == [100]
    sizes = plan(capsys, "--suite", str(path), "--samples", "7")["sizes"]
    assert isinstance(sizes, list)
    assert [s["pairs"] for s in sizes if s["name"] == "suite own"] == [21]
    path.write_text(SUITE.format(samples=0))
    assert run(["accuracy", "plan", "--suite", str(path)]) == 2
    assert capsys.readouterr().err == "kvverify: --suite: the size of b is that of its data; give it with --samples\n"


def test_the_tables_name_claim_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["accuracy", "plan", "--discordance", "0.04", "--samples", "320"]) == 0
    out = capsys.readouterr().out
    assert "Samples that show a loss of less than 1 point with power 80% at no true loss" in out
    assert "Never fewer than 268, even if no answer changes." in out
    assert "320 samples" in out
    assert "2,562 (2,474)" in out
    assert "power at 4 %" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--loss", "1"], "--loss 1: a loss of the margin (1) or more cannot be shown to be less; give a smaller one"),
        (
            ["--loss", "0.5", "--discordance", "0.001"],
            "--discordance 0.001: fewer answers change than are lost (--loss 0.5); give 0.005 or more",
        ),
        (["--margin", "0"], "Invalid value for '--margin': 0.0 is not in the range 0<x<100."),
        (["--suite", "nothing"], "nothing: no such file and nothing shipped of this name in suites"),
    ],
)
def test_what_cannot_be_asked(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert run(["accuracy", "plan", *words]) == 2
    assert says in capsys.readouterr().err
