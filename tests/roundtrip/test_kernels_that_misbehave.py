"""What a kernel under test can do wrong beside wrong bytes: each ends as a failure that names the step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.registry import resolve
from kvverify.layout.document import to_document
from kvverify.layout.recipe import LayerRecipe, Recipe
from kvverify.roundtrip.child import Child, log_file
from kvverify.roundtrip.hunt import hunt
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Check, Fill, Load, Program, Store
from kvverify.roundtrip.strategies import Shape

EVIL = Path(__file__).with_name("evil.py")
RECIPE = to_document(
    Recipe(layers=(LayerRecipe("bf16", 2, 64), LayerRecipe("turboquant_4bit_nc", 2, 128, 2)), num_blocks=6)
)
CLEAN = Program(7, (Fill((0,)), Store((0,), (0,)), Load((0,), (1,))), 3)
TWO_BLOCKS = Program(7, (Fill((0, 1)), Store((0, 1), (0, 1)), Check(), Load((0, 1), (4, 5)), Fill((2,))), 3)


@pytest.fixture
def children(torch: ModuleType) -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.close()


def misbehaving(children: list[Child], name: str, time_limit: float = 30.0) -> Child:
    child = Child(resolve(f"{EVIL}:{name}"), time_limit=time_limit)
    children.append(child)
    return child


def outcome_of(children: list[Child], name: str, program: Program = TWO_BLOCKS, time_limit: float = 30.0) -> Outcome:
    return misbehaving(children, name, time_limit).run(RECIPE, program, explain=True)


def test_a_clean_kernel_passes(children: list[Child]) -> None:
    child = Child(resolve("torch"))
    children.append(child)
    outcome = child.run(RECIPE, TWO_BLOCKS, explain=True)
    assert not outcome.failed
    assert outcome.compared_bytes > 0


def test_what_a_kernel_prints_has_one_place_whatever_it_is_called() -> None:
    """Campaign and self-test named it differently, and the self-test left a colon in it."""
    source = resolve(f"{EVIL}:Raises")
    assert ":" in source.name
    assert log_file(Path("run"), source) == Path("run/evil.py_Raises.log")
    assert log_file(None, source) is None


def test_raising_names_the_call_and_the_first_line(children: list[Child]) -> None:
    outcome = outcome_of(children, "Raises")
    assert (outcome.kind, outcome.step) == ("raised", 3)
    assert outcome.headline == "load([0, 1], [4, 5]) raised RuntimeError: the copy engine is on fire"


def test_a_hang_is_ended_and_the_next_program_runs(children: list[Child]) -> None:
    child = misbehaving(children, "Hangs", time_limit=20.0)
    assert not child.run(RECIPE, CLEAN).failed
    child.time_limit = 0.5
    outcome = child.run(RECIPE, TWO_BLOCKS)
    assert (outcome.kind, outcome.step) == ("hung", 3)
    assert outcome.headline == "no answer within 0.5 s in load"
    child.time_limit = 20.0
    assert not child.run(RECIPE, CLEAN).failed


@pytest.mark.parametrize(
    ("name", "step", "headline"),
    [
        ("Crashes", 1, "the process was ended by signal SIGSEGV in store"),
        ("Exits", 1, "the process was ended by exit code 0 in store"),
        ("OutOfBounds", 3, "the process was ended by signal SIGSEGV in load"),
        ("Frees", 2, "the process was ended by signal SIGSEGV in check"),
    ],
)
def test_a_death_names_the_step_and_the_next_program_runs(
    children: list[Child], name: str, step: int, headline: str
) -> None:
    child = misbehaving(children, name)
    outcome = child.run(RECIPE, TWO_BLOCKS)
    assert (outcome.kind, outcome.step, outcome.headline) == ("crashed", step, headline)
    again = child.run(RECIPE, Program(1, (Fill((0,)),), 3))
    assert not again.failed


def test_a_write_into_a_guard_is_found(children: list[Child]) -> None:
    outcome = outcome_of(children, "GuardWriter")
    assert outcome.kind == "wrong-bytes"
    assert "guard" in outcome.headline


def test_an_early_return_is_told_from_wrong_bytes(children: list[Child]) -> None:
    outcome = outcome_of(children, "ReturnsEarly")
    assert (outcome.kind, outcome.step) == ("early-return", 3)
    assert outcome.headline.startswith("wait() returned before the copies were done")


def test_a_cut_tail_names_the_field(children: list[Child]) -> None:
    outcome = outcome_of(children, "CutsTheTail")
    assert outcome.kind == "wrong-bytes"
    assert "v_min" in outcome.headline


def test_supports_must_decide(children: list[Child]) -> None:
    with pytest.raises(EnvironmentProblem, match="undecided"):
        misbehaving(children, "Undecided").describe(RECIPE)


@pytest.mark.parametrize("name", ["OwnsItsHost", "HidesItsHost"])
def test_a_library_may_own_its_host_tier(children: list[Child], name: str) -> None:
    assert not outcome_of(children, name).failed


def test_a_failure_that_does_not_come_back_is_still_a_failure(children: list[Child]) -> None:
    batch = hunt(misbehaving(children, "RemembersSequences"), RECIPE, Shape(tuple(range(6))), seed=3, examples=40)
    assert batch.found is not None
    assert batch.found.outcome.kind == "wrong-bytes"
    assert "a race, or state kept by the kernel" in batch.found.outcome.details[-1]


def test_a_crash_shrinks_to_the_call_that_crashes(children: list[Child]) -> None:
    batch = hunt(misbehaving(children, "Crashes"), RECIPE, Shape(tuple(range(6))), seed=3, examples=40)
    assert batch.found is not None
    kinds = [step.kind for step in batch.found.program.steps]
    assert kinds == ["fill", "store"]


def test_wrong_bytes_shrink_to_fill_store_load(children: list[Child]) -> None:
    batch = hunt(misbehaving(children, "CutsTheTail"), RECIPE, Shape(tuple(range(6))), seed=3, examples=40)
    assert batch.found is not None
    assert [step.kind for step in batch.found.program.steps] == ["fill", "store", "load"]
    assert batch.sequences > 0


def test_a_kernel_that_failed_is_closed_all_the_same(children: list[Child]) -> None:
    """vLLM's workers pin memory until they are closed; unclosed ones made each later attempt fail, and hid what was found."""
    child = misbehaving(children, "HoldsUntilClosed")
    outcomes = [child.run(RECIPE, TWO_BLOCKS) for _ in range(3)]
    assert [o.kind for o in outcomes] == ["wrong-bytes"] * 3


def test_a_kernel_that_could_not_be_prepared_is_closed_all_the_same(children: list[Child]) -> None:
    """What it took before it raised was never given back, and the second attempt found another error than the first."""
    child = misbehaving(children, "TakesAndCannotBePrepared")
    outcomes = [child.run(RECIPE, TWO_BLOCKS) for _ in range(2)]
    assert [o.headline for o in outcomes] == ["prepare raised RuntimeError: no streams left"] * 2
