"""What a tier-diff plans: prompts that all tiers hit alike, waves that HBM holds, what a resumed run leaves out, the excess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.errors import UsageError
from kvverify.events import Event, ExcessMeasured, GateEvaluated, ReplayCompared, RunFinished, RunStarted, Verdict
from kvverify.live.engine import EngineInfo
from kvverify.tierdiff.options import LONG_TOKENS, TierDiffOptions
from kvverify.tierdiff.run import _arms, _finished, _lengths, _measure, _waves
from kvverify.verdicts import verdict_of

blocks = st.sampled_from([1, 16, 32, 128])


@given(blocks, st.integers(1, 4), st.integers(3, 9), st.integers(1, 300))
def test_all_tiers_hit_alike_at_every_length(block: int, factor: int, units: int, room: int) -> None:
    unit = block * factor
    info = EngineInfo("e", "m", block_tokens=block, hit_tokens=unit, max_context=20 * unit)
    lengths = _lengths(units * unit + max(1, block // 2), info, room=room)
    for n in lengths[:1] + [n for n in lengths[1:] if n + room <= 20 * unit]:
        assert (n - 1) // block * block == (n - 1) // unit * unit >= 3 * unit
    assert all(n + room <= 20 * unit for n in lengths[1:])


@given(st.integers(1, 40), st.integers(500, 5000), st.integers(0, 3))
def test_a_wave_fits_into_hbm_and_no_request_is_left_out(requests: int, capacity: int, long: int) -> None:
    options = TierDiffOptions(url="u", requests=requests, long_requests=long)
    info = EngineInfo("e", "m", block_tokens=16, hit_tokens=16, capacity_tokens={"hbm": capacity})
    waves = _waves(options, [100, 120], info)
    assert [n for wave in waves for n in wave] == list(range(requests))
    for wave in waves:
        used = sum([100, 120][n % 2] + options.tokens_of(n) for n in wave)
        assert len(wave) == 1 or 2 * used <= capacity - 100


def test_an_hbm_of_one_prompt_is_tested_prompt_by_prompt() -> None:
    """llama.cpp's slot; several prompts of a wave would have been expected in HBM at once."""
    slot = EngineInfo("e", "m", block_tokens=1, capacity_tokens={"hbm": 4096}, lower_tier="disk", prompts_in_hbm=1)
    assert _waves(TierDiffOptions(url="u", requests=3), [100], slot) == [[0], [1], [2]]
    arms, notes = _arms(TierDiffOptions(url="u"), slot, by_ids=True)
    assert arms == ["cold", "hbm-again", "disk", "disk-again", "starved"]
    assert notes == ["arms partial and concurrent left out: HBM holds one prompt, from one tier"]


def test_long_requests_generate_enough_for_faults_of_late_steps() -> None:
    options = TierDiffOptions(url="u", max_tokens=16, long_requests=2)
    assert [options.tokens_of(n) for n in range(3)] == [LONG_TOKENS, LONG_TOKENS, 16]
    assert TierDiffOptions.from_log(options.to_log()) == options
    with pytest.raises(UsageError, match="other options"):
        TierDiffOptions.from_log({"url": "u", "colour": "blue"})
    with pytest.raises(UsageError, match="at most"):
        TierDiffOptions(url="u", requests=10**6)


def test_what_is_left_out_is_said() -> None:
    options = TierDiffOptions(url="u", concurrency=1)
    small = EngineInfo("e", "m", capacity_tokens={"hbm": 1000, "dram": 1500})
    arms, notes = _arms(options, small, by_ids=False)
    assert arms == ["cold", "hbm-again", "dram", "dram-again"]
    assert [note.split()[1] for note in notes] == ["starved", "partial", "arms"]
    roomy = EngineInfo("e", "m", capacity_tokens={"hbm": 1000, "dram": 2000})
    arms, notes = _arms(TierDiffOptions(url="u"), roomy, by_ids=True)
    assert arms[-1] == "dram-concurrent"
    assert {"starved", "partial"} <= set(arms)
    assert notes == []
    below = EngineInfo("e", "m", lower_tier="disk", tiers_between=("dram",), capacity_tokens={"hbm": 1000})
    arms, notes = _arms(TierDiffOptions(url="u"), below, by_ids=True)
    assert "partial" not in arms
    assert notes == ["arm partial left out: the first part of a prompt would stay in dram"]


def compared(request: int, arm: str = "dram", *, base: str = "hbm", difference: float = 0.0) -> ReplayCompared:
    return ReplayCompared(
        base=base,
        arm=arm,
        round=0,
        request=request,
        judged=arm != base + "-again",
        positions=4,
        largest_difference=difference,
    )


def test_a_wave_is_finished_when_its_last_arm_is_compared() -> None:
    known = [compared(0), compared(1)]
    assert _finished(known, 0, [0, 1], "dram")
    assert not _finished(known, 0, [0, 1, 2], "dram")
    assert not _finished(known, 1, [0], "dram")
    assert not _finished(known, 0, [0], "starved")


def test_the_excess_is_measured_where_anything_differs_and_over_proved_requests_only() -> None:
    known: list[Event] = [
        GateEvaluated(arm=arm, round=0, request=n) for arm in ("hbm", "hbm-again", "dram") for n in range(20)
    ]
    known += [compared(n, "hbm-again") for n in range(20)]
    found: list[Event] = []
    _measure([*known, *(compared(n) for n in range(20))], found.append, 0)
    assert found == []
    known.append(GateEvaluated(arm="dram", round=0, request=0, reasons=["no bytes"]))
    noisy = [*known, *(compared(n, difference=0.5) for n in range(20))]
    _measure(noisy, found.append, 0)
    largest = next(e for e in found if isinstance(e, ExcessMeasured))
    assert (largest.requests, largest.excess, largest.low) == (19, 0.5, 0.5)


@pytest.mark.parametrize(("largest", "verdict"), [(4.3e-6, Verdict.PASS), (1e-3, Verdict.FAIL)])
def test_what_sharing_a_batch_changes_is_noise_and_no_fault_of_a_tier(largest: float, verdict: Verdict) -> None:
    """On a sound vLLM without batch invariance both passes from HBM shared batches alike, and the one from DRAM did not."""
    arms = ("hbm", "hbm-again", "dram", "hbm-concurrent", "hbm-concurrent-again", "dram-concurrent")
    seen: list[Event] = [
        RunStarted(command="tier-diff", version="0", seed=0, options={}),
        *(GateEvaluated(arm=arm, round=0, request=n) for arm in arms for n in range(20)),
    ]
    for n in range(20):
        batch = ReplayCompared(
            base="hbm", arm="hbm-concurrent", round=0, request=n, judged=False, positions=4,
            largest_difference=4.6e-6 + n * 1e-8,
        )  # fmt: skip
        seen += [
            compared(n, "hbm-again"),
            compared(n),
            batch,
            compared(n, "hbm-concurrent-again", base="hbm-concurrent"),
            compared(n, "dram-concurrent", base="hbm-concurrent", difference=largest + n * 1e-8),
        ]
    _measure(list(seen), seen.append, 0)
    assert verdict_of([*seen, RunFinished(seconds=1.0)]) is verdict
