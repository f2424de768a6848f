from __future__ import annotations

import re
from types import ModuleType

import pytest

from kvverify.errors import UsageError
from kvverify.faults.catalogue import catalogue, fault_named, plantable_named
from kvverify.faults.fault import Fault

REQUIRED = {f"F{n:02d}" for n in (*range(1, 14), 15, 16, 21)}


def test_every_copy_fault_of_the_public_catalogue_can_be_planted() -> None:
    plantable = {fault.id for fault in catalogue() if not fault.elsewhere}
    assert plantable >= REQUIRED
    assert {f"F{n:02d}" for n in range(1, 23)} <= {fault.id for fault in catalogue()}
    assert sum(id_.startswith("K") for id_ in plantable) >= 6


def test_ids_and_names_are_unique_and_every_fault_says_what_it_is() -> None:
    faults = catalogue()
    assert len({f.id for f in faults} | {f.name for f in faults}) == 2 * len(faults)
    for fault in faults:
        assert fault.description
        assert (fault.wrap is None) == bool(fault.elsewhere)
        assert fault.by in {"views", "ids", "order", "results"}
        for report in fault.origin:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report), report


def test_public_faults_that_can_be_planted_name_their_reports() -> None:
    assert all(f.origin for f in catalogue() if f.id.startswith("F") and not f.elsewhere)


@pytest.mark.parametrize("word", ["F04", "f04", "short-copy-width", "Short-Copy-Width"])
def test_a_fault_is_found_by_id_and_name_whatever_the_case(word: str) -> None:
    assert fault_named(word).id == "F04"


def test_an_unknown_fault_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown fault 'F004': did you mean 'F04'"):
        fault_named("F004")
    with pytest.raises(UsageError, match=r"unknown fault 'layer-shft': did you mean 'layer-shift'"):
        fault_named("layer-shft")


@pytest.mark.parametrize("fault", [f for f in catalogue() if f.elsewhere], ids=lambda f: f.id)
def test_what_no_copy_kernel_can_show_says_why(fault: Fault, torch: ModuleType) -> None:
    from kvverify.kernels.torch_reference import TorchReference

    assert fault.elsewhere in {"no adapter has accessors that wait layer by layer", "needs a live server"}
    with pytest.raises(UsageError, match=f"{fault.id} .*cannot be planted into a copy kernel: {fault.elsewhere}"):
        fault.plant(TorchReference())
    with pytest.raises(UsageError, match="cannot be planted into a copy kernel"):
        plantable_named(fault.id)


@pytest.mark.parametrize("name", ["F12", "F13", "K22", "K23"])
def test_what_needs_a_stream_is_planted_on_a_gpu_only(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} .*cannot be planted into a copy kernel: needs a GPU stream"):
        plantable_named(name)
    assert plantable_named(name, "cuda").id == name


def test_far_host_rows_are_the_cpus() -> None:
    assert plantable_named("K04").id == "K04"
    with pytest.raises(
        UsageError, match=r"K04 .*: needs a host tier beyond 2 GiB, which is mapped sparsely on the CPU"
    ):
        plantable_named("K04", "cuda")
