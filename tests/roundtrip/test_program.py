"""Programs as data: they survive JSON, and the model lets through what the contract allows and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.roundtrip.program import (
    Evict,
    Fill,
    Forget,
    Load,
    LoadPart,
    Program,
    Step,
    Store,
    is_valid,
    step_from_json,
)
from kvverify.roundtrip.strategies import MIN_STEPS, Shape, programs

shapes = st.builds(
    Shape,
    blocks=st.integers(1, 40).map(lambda n: tuple(range(n))),
    groups=st.integers(1, 3),
    host_slots=st.integers(1, 6),
    blocks_per_slot=st.integers(1, 4),
    load_part=st.booleans(),
    partial_slots=st.booleans(),
    slow=st.booleans(),
)


@given(shape=shapes, data=st.data())
def test_every_drawn_program_is_valid_and_long_enough(shape: Shape, data: st.DataObject) -> None:
    program = data.draw(programs(shape))
    assert is_valid(program, shape.blocks)
    assert len(program.steps) >= MIN_STEPS
    assert program.host_slots == shape.host_slots


@given(shape=shapes, data=st.data())
def test_a_program_survives_json(shape: Shape, data: st.DataObject) -> None:
    program = data.draw(programs(shape))
    assert Program.from_json(program.to_json()) == program


@given(shape=shapes, data=st.data())
def test_only_kernels_that_say_so_get_partly_filled_slots_and_parts(shape: Shape, data: st.DataObject) -> None:
    program = data.draw(programs(shape))
    for step in program.steps:
        if isinstance(step, Store) and not shape.partial_slots and len(step.blocks) >= shape.blocks_per_slot:
            assert len(step.blocks) % shape.blocks_per_slot == 0
        assert shape.load_part or not isinstance(step, LoadPart)


def check(steps: tuple[Step, ...], *, per_slot: int = 1) -> bool:
    return is_valid(Program(0, steps, 3, per_slot), (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("reason", "steps"),
    [
        ("a block that holds nothing", (Store((0,), (0,)),)),
        ("a slot that holds nothing", (Fill((0,)), Load((0,), (1,)))),
        ("an evicted block", (Fill((0,)), Evict((0,)), Store((0,), (0,)))),
        ("a forgotten slot", (Fill((0,)), Store((0,), (0,)), Forget((0,)), Load((0,), (1,)))),
        ("a destination block twice", (Fill((0,)), Store((0, 0), (0, 1)), Load((0, 1), (2, 2)))),
        ("a destination slot twice", (Fill((0, 1)), Store((0, 1), (2, 2)))),
        ("a slot beyond the host", (Fill((0,)), Store((0,), (3,)))),
        ("a block beyond the pool", (Fill((4,)),)),
        ("another group's contents", (Fill((0,), 1), Store((0,), (0,), 0))),
        ("no blocks at all", (Fill(()),)),
        ("a part beyond the slot", (Fill((0,)), Store((0,), (0,)), LoadPart((0), 1, (2,)))),
    ],
)
def test_the_model_refuses(reason: str, steps: tuple[Step, ...]) -> None:
    assert not check(steps), reason


def test_sources_may_repeat() -> None:
    assert check((Fill((0,)), Store((0, 0), (0, 1)), Load((1, 1, 0), (1, 2, 3))))


def test_the_last_slot_may_be_partly_filled() -> None:
    steps = (Fill((0, 1, 2)), Store((0, 1, 2), (0, 1)), Load((0, 1), (1, 2, 3)), LoadPart(0, 1, (3,)))
    assert check(steps, per_slot=2)


@pytest.mark.parametrize("data", [[], ["jump"], ["fill"], ["fill", [0], 0, 0], ["check", 1]])
def test_unknown_steps_are_named(data: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"step"):
        step_from_json(data)


DRAWN = """
import hashlib, sys
{imports}
from hypothesis import HealthCheck, Phase, given, seed, settings
from kvverify.roundtrip.strategies import Shape, programs
drawn = []

@seed(3)
@settings(max_examples=100, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(programs(Shape(tuple(range(33)), 2, 6, 4, True, True)))
def collect(program):
    drawn.append(program)

collect()
print(len(drawn), hashlib.sha256(repr(drawn).encode()).hexdigest())
"""


def test_what_is_drawn_depends_on_no_module_that_happens_to_be_loaded() -> None:
    # a resumed run drew other programs than the run it resumed: Hypothesis takes constants from the modules it finds loaded
    outputs = {
        subprocess.run(
            [sys.executable, "-c", DRAWN.format(imports=imports)], capture_output=True, text=True, check=True
        ).stdout
        for imports in (
            "",
            "import kvverify.report.html, kvverify.layout.models, kvverify.faults.catalogue, bench.checks",
        )
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith("100 ")
