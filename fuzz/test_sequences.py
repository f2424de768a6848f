"""No sequence of engine steps damages a byte: Hypothesis draws the sequences, a child process executes them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from kvverify.layout.document import to_document
from kvverify.layout.place import place
from kvverify.layout.recipe import Recipe
from kvverify.roundtrip.campaign import program_lines
from kvverify.roundtrip.hunt import hunt

if TYPE_CHECKING:
    from fuzz.conftest import Bench


def test_no_sequence_damages_a_byte(bench: Bench, recipe: Recipe) -> None:
    shape = bench.shape(recipe)
    examples = 3 if shape.slow else 12
    seed = zlib.crc32(place(recipe).name.encode())
    batch = hunt(bench.child, to_document(recipe), shape, seed=seed, examples=examples)
    if batch.found is not None:
        steps = program_lines(batch.found.program, batch.found.outcome.step)
        raise AssertionError("\n".join([batch.found.outcome.headline, *steps, *batch.found.outcome.details]))
    assert batch.sequences > 0, batch.refused
    assert batch.compared_bytes > 0
