"""The benchmark of the GPU runs where there is none, at sizes that tell nothing about speed, and rates nothing that is wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench import commands, gpu_campaign, gpu_payload  # noqa: E402
from bench.block_copy import BlockCopy  # noqa: E402
from kvverify.roundtrip.program import is_valid  # noqa: E402

CPU = torch.device("cpu")
LAYOUT = gpu_payload.layout_of("mixed", 3 << 20, block_major=True, small=True)


def test_every_part_runs_and_writes_its_numbers(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    words = commands.python("-m", "bench.gpu", "--small", "--json", str(numbers))
    subprocess.run(words, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    found = json.loads(numbers.read_text())
    barred = [m["name"] for m in found["measures"] if m["bar"] is not None]
    assert [sum(word in name for name in barred) for word in ("check /", "fill /", "verification", "there and")] == [
        2,
        2,
        1,
        1,
    ]
    assert set(found["missed"]) <= set(barred)


def test_a_gpu_is_asked_for() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    ended = subprocess.run(
        commands.python("-m", "bench.gpu"), cwd=Path(__file__).parents[2], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "sees no GPU" in ended.stderr


def test_the_layouts_are_those_of_the_issue() -> None:
    mixed, bf16 = (gpu_payload.layout_of(kind, 1 << 28) for kind in ("mixed", "bf16"))
    assert [len(x.layers) for x in (mixed, bf16)] == [62, 62]
    assert {x.kv_format for x in mixed.layers} == {"bf16", "turboquant_4bit_nc"}
    assert {x.kv_format for x in bf16.layers} == {"bf16"}
    assert all(0.9 < x.size_bytes / (1 << 28) <= 1 for x in (mixed, bf16))


def test_a_check_that_sees_nothing_is_not_rated(monkeypatch: pytest.MonkeyPatch) -> None:
    work = gpu_payload.Work(LAYOUT, CPU)
    work.prove()
    monkeypatch.setattr(work, "check", lambda: [torch.zeros(1)])
    with pytest.raises(RuntimeError, match="must see one flipped byte"):
        work.prove()


@pytest.mark.parametrize("laps", [1, 3])
def test_the_programs_mean_something_and_touch_the_whole_pool(laps: int) -> None:
    long, whole = gpu_campaign.long_program(LAYOUT, 2, laps), gpu_campaign.whole_pool(LAYOUT)
    between = {"check", "evict"} if laps > 1 else set()
    assert {step.kind for step in long.steps} == {"fill", "store", "load"} | between
    assert is_valid(long, LAYOUT.blocks)
    assert is_valid(whole, LAYOUT.blocks)
    loaded = {b for step in whole.steps if step.kind == "load" for b in step.blocks}  # type: ignore[attr-defined]
    assert loaded == set(range(LAYOUT.num_blocks // gpu_campaign.PER_SLOT * gpu_campaign.PER_SLOT))


def test_a_tier_too_large_for_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool of 4 slots' blocks is too small for a tier of 3"):
        gpu_campaign.long_program(LAYOUT, 3, 1)


def test_the_raw_copies_move_whole_blocks_only_where_these_lie_together() -> None:
    apart = gpu_payload.layout_of("mixed", 1 << 20, small=True)
    assert BlockCopy(8).supports(LAYOUT) is True
    assert BlockCopy(8).supports(apart) is not True


def test_a_copy_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockCopy, "load", lambda *_: None)
    with pytest.raises(RuntimeError, match="a right kernel failed"):
        list(gpu_campaign.overhead(LAYOUT, 1 << 20, "cpu", laps=1))
