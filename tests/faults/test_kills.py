"""Every planted fault is killed, by comparison and not by an exception; the same programs without it find nothing."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest

from kvverify.faults.catalogue import catalogue, fault_named
from kvverify.faults.fault import Fault
from kvverify.roundtrip.campaign import shape_for
from kvverify.roundtrip.collect import collected
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Load
from tests.faults.hunting import hunt, hunted, pool, reference, showing, traits_of

PLANTABLE = [fault for fault in catalogue() if not fault.out_of_reach("cpu")]


@pytest.mark.parametrize("fault", PLANTABLE, ids=lambda f: f"{f.id}-{f.name}")
def test_fault_is_killed_by_the_oracle(fault: Fault, torch: ModuleType) -> None:
    outcome = hunted(fault)
    assert outcome.kind in fault.checks, f"{outcome.kind or 'survived'}: {outcome.headline}"


@pytest.mark.parametrize("per_slot", [2, 4, 16])
@pytest.mark.parametrize("fault", PLANTABLE, ids=lambda f: f"{f.id}-{f.name}")
def test_fault_is_killed_whatever_number_of_blocks_a_slot_holds(fault: Fault, per_slot: int, torch: ModuleType) -> None:
    # F16 and K11 were looked for with 4 blocks a slot where no load can name two slots
    if next(showing(fault, per_slot), None) is None:
        assert fault.id == "K12"  # 17 full slots: pools hold 33 blocks at most
        return
    outcome = hunted(fault, per_slot=per_slot)
    assert outcome.kind in fault.checks, f"{outcome.kind or 'survived'}: {outcome.headline}"


@pytest.mark.parametrize("partly", [True, False])
@pytest.mark.parametrize("per_slot", [2, 4])
def test_faults_of_several_slots_are_looked_for_exactly_where_loads_name_so_many(
    per_slot: int, partly: bool, torch: ModuleType
) -> None:
    traits = {**traits_of(reference(per_slot)), "partial_slots": partly}
    for layout in {len(x.blocks): x for x in pool()}.values():
        programs = collected(shape_for(layout, traits), 3, 96)
        loads = [step.slots for program in programs for step in program.steps if isinstance(step, Load)]
        named = {"F16": any(len(s) > 2 for s in loads), "K11": any(len(set(s)) < len(s) for s in loads)}
        shown = {fault: fault_named(fault).shows_on(traits, layout) is None for fault in named}
        assert shown == named, f"{len(layout.blocks)} blocks"


def test_the_clean_reference_passes_where_the_faults_were_found(torch: ModuleType) -> None:
    layouts = {next(showing(fault)).name: next(showing(fault)) for fault in PLANTABLE}
    for per_slot in (1, 4):
        for layout in layouts.values():
            outcome = hunt(partial(reference, per_slot), layout, examples=16)
            assert not outcome.failed, f"{layout.name}: {outcome.headline}"


def _said(fault: str) -> Outcome:
    return hunted(fault_named(fault))


def test_short_copy_width_names_the_fields_that_were_cut(torch: ModuleType) -> None:
    said = _said("F04")
    assert "turboquant_4bit_nc" in said.headline
    assert "(v_scale, v_min)" in said.headline
    assert "never written" in said.headline
    assert "the last 4 of 134 bytes of the cell were cut off" in said.headline
    assert (said.first["kv_format"], said.first["field"], said.first["byte"]) == ("turboquant_4bit_nc", "v_scale", 130)


def test_a_dropped_sidecar_names_every_scale_and_no_data(torch: ModuleType) -> None:
    said = _said("F05")
    assert "(k_norm, v_scale, v_min)" in said.headline
    assert "never written" in said.headline


def test_a_word_remainder_names_the_odd_bytes_of_the_row(torch: ModuleType) -> None:
    said = _said("F07")
    assert "bytes 128-133 of the cell" in said.headline
    assert "the last 6 of 134 bytes of the cell were cut off" in said.headline


def test_a_layer_shift_says_that_other_layers_bytes_are_there(torch: ModuleType) -> None:
    said = _said("F11")
    assert "they hold other layers' (" in said.headline
    assert "2 for 1, 3 for 2" in said.headline


def test_a_strided_view_read_as_contiguous_names_layers_and_where_the_bytes_came_from(torch: ModuleType) -> None:
    said = _said("F01")
    text = " ".join([said.headline, *said.details])
    assert "layer 0-3 (bf16, turboquant_k8v4)" in text
    assert "block" in text
    assert "they hold" in text or "never written" in text


def test_an_early_return_is_told_from_wrong_bytes(torch: ModuleType) -> None:
    said = _said("K15")
    assert said.kind == "early-return"
    assert said.headline.startswith("wait() returned before the copies were done")


def test_what_a_fault_cannot_show_on_says_why(torch: ModuleType) -> None:
    traits = {"blocks_per_slot": 1, "load_part": False, "groups": True, "partial_slots": False, "slow": False}
    bf16 = next(x for x in pool() if x.formats == ("bf16",) and x.usable_blocks is None)
    reasons = {fault.id: fault.shows_on(traits, bf16) for fault in PLANTABLE}
    assert reasons["F04"] == "no cell ends with inline scales"
    assert reasons["F06"] == "storage and logical dtype are the same"
    assert reasons["F08"] == "the buffer is smaller than 2 GiB"
    assert reasons["F09"] == "the kernel puts one block into a slot"
    assert reasons["F21"] is None
