"""Several ranks on as many GPUs: the control passes, and a kernel that forgets a rank or takes another's slice is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.kernels.registry import resolve
from kvverify.layout.document import to_document
from kvverify.layout.models import load_model
from kvverify.layout.rules import recipe_for
from kvverify.roundtrip.program import Check, Fill, Load, Program, Spin, Store
from kvverify.roundtrip.ranks import Ranks

KERNELS = Path(__file__).parents[1] / "roundtrip" / "rank_kernels.py"
PROGRAM = Program(
    7, (Fill((0, 1, 2)), Spin(8), Store((0, 1, 2), (2, 0, 1)), Check(), Spin(8), Load((0, 1, 2), (4, 5, 3))), 3
)

RunOnAll = Callable[[str], tuple[str, str]]


@pytest.fixture
def run_on_all(torch: ModuleType, gpu: str) -> Iterator[RunOnAll]:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"needs 2 GPUs, torch sees {count}")
    started: list[Ranks] = []

    def run(spec: str) -> tuple[str, str]:
        recipe = to_document(recipe_for(load_model("minimax-m2.5"), "auto", tp=2, num_blocks=8))
        started.append(Ranks(resolve(spec, "cuda"), 2, time_limit=60.0))
        outcome = started[-1].run(recipe, PROGRAM, explain=True)
        return outcome.kind, outcome.headline

    yield run
    for one in started:
        one.close()


@pytest.mark.parametrize("spec", ["torch", "memcpy-async", f"{KERNELS}:shared_host", f"{KERNELS}:memcpy_shared_host"])
def test_a_right_kernel_passes_on_two_gpus(run_on_all: RunOnAll, spec: str) -> None:
    assert run_on_all(spec) == ("", "")


@pytest.mark.parametrize("inner", ["", "memcpy_"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rank_zero_loads", "rank 1: "),
        ("rank_zero_stores", "rank 1: "),
        ("next_slice", "rank 0: "),
        ("first_slice", "rank "),
    ],
)
def test_a_wrong_kernel_is_found_on_two_gpus(run_on_all: RunOnAll, inner: str, name: str, words: str) -> None:
    kind, headline = run_on_all(f"{KERNELS}:{inner}{name}")
    assert kind == "wrong-bytes"
    assert headline.startswith(words)
