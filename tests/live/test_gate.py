"""The gate: a clean pass is satisfied, and any one number that is off, missing or going backwards is a reason."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.event_json import from_json, to_json
from kvverify.events import GateEvaluated
from kvverify.live import gate
from kvverify.live.answer import Answer
from kvverify.live.engine import EngineInfo, Evidence, Expected

COUNTERS = tuple(f.name for f in dataclasses.fields(Evidence) if f.name not in ("running", "witness"))


@dataclass(frozen=True)
class Pass:
    """Arguments of the gate, and its answer to them."""

    tier: str
    before: Evidence
    after: Evidence
    expected: Expected
    answers: tuple[Answer, ...]
    info: EngineInfo
    poisoned: bool = True
    shared: bool = False

    def judged(self) -> GateEvaluated:
        return gate.evaluate(
            self.tier,
            self.before,
            self.after,
            self.expected,
            self.answers,
            self.info,
            poisoned=self.poisoned,
            shared=self.shared,
        )


@st.composite
def clean_passes(draw: st.DrawFn, tier: str | None = None, *, byte_counter: bool | None = None) -> Pass:
    """A pass in which every counter moved exactly as it has to; counters start anywhere."""
    tier = tier or draw(st.sampled_from(gate.ARM_TIERS))
    requests = draw(st.integers(1, 4))
    unit = draw(st.sampled_from([16, 32, 256]))
    tails = draw(st.lists(st.integers(1, 15), min_size=requests, max_size=requests))
    units = draw(st.lists(st.integers(3, 9), min_size=requests, max_size=requests))
    counts_bytes = draw(st.booleans()) if byte_counter is None else byte_counter
    head = unit if tier == "partial" else 0
    each = [
        Expected(
            hit_tokens=k * unit - head,
            hbm_hit_tokens=head or k * unit,
            computed_tokens=r,
            loaded_bytes=(k * unit - head) * 184_320 if counts_bytes else None,
            witness={} if counts_bytes else {"l1_hit_tokens": k * unit - head, "chunks": k},
        )
        for k, r in zip(units, tails, strict=True)
    ]
    lower = {"partial": draw(st.sampled_from(["dram", "disk"]))}.get(tier, tier)
    info = EngineInfo("engine", "model", lower_tier=lower if lower in gate.LOWER else "dram")
    prompts = [k * unit + r for k, r in zip(units, tails, strict=True)]
    before = _start(draw, tuple(gate.total(each).witness))
    after = _moved(before, tier, lower, gate.total(each), prompts)
    cached = [0 if tier == "none" else k * unit for k in units]
    answers = tuple(Answer("x", n, c, (1,), ("a",), (-0.5,)) for n, c in zip(prompts, cached, strict=True))
    return Pass(tier, before, after, gate.total(each), answers, info)


def _start(draw: st.DrawFn, witness: tuple[str, ...]) -> Evidence:
    starts = {name: draw(st.integers(0, 10**9)) for name in COUNTERS}
    return Evidence(**starts, running=0, witness={name: draw(st.integers(0, 10**9)) for name in witness})


def _moved(before: Evidence, tier: str, lower: str, expected: Expected, prompts: list[int]) -> Evidence:
    moves = dict.fromkeys(COUNTERS, 0)
    moves |= {"queries": sum(prompts), "requests": len(prompts), "computed_tokens": expected.computed_tokens}
    witness = before.witness
    if tier == "none":
        moves["computed_tokens"] = sum(prompts)
    elif tier == "hbm":
        moves["hbm_hit_tokens"] = expected.hbm_hit_tokens
    else:
        moves |= {f"{lower}_hit_tokens": expected.hit_tokens, "loaded_bytes": expected.loaded_bytes or 4096}
        moves["hbm_hit_tokens"] = expected.hbm_hit_tokens if tier == "partial" else 0
        witness = {name: before.witness[name] + n for name, n in expected.witness.items()}
    return replace(before, **{name: getattr(before, name) + n for name, n in moves.items()}, witness=witness)


def _unknown(name: str) -> dict[str, Any]:
    return {name: None}


@given(clean_passes())
def test_a_clean_pass_is_satisfied_and_survives_the_log(p: Pass) -> None:
    judged = p.judged()
    assert judged.reasons == []
    assert bool(judged.witnesses) == (p.tier in {"dram", "disk", "partial"})
    assert from_json(to_json(judged)) == judged


MUST_BE_EXACT = ("hbm_hit_tokens", "dram_hit_tokens", "disk_hit_tokens", "computed_tokens", "requests", "preemptions")


@pytest.mark.parametrize("name", MUST_BE_EXACT)
@given(p=clean_passes(), off=st.sampled_from([-16, -1, 1, 16, 32, 256]))
def test_one_counter_that_is_off_by_anything_is_a_reason(name: str, p: Pass, off: int) -> None:
    changed = replace(p, after=replace(p.after, **{name: getattr(p.after, name) + off}))
    assert changed.judged().reasons


@given(clean_passes(byte_counter=True), st.sampled_from([-184_320, -1, 1, 4096]))
def test_one_loaded_byte_more_or_less_is_a_reason(p: Pass, off: int) -> None:
    assert p.after.loaded_bytes is not None
    assert replace(p, after=replace(p.after, loaded_bytes=p.after.loaded_bytes + off)).judged().reasons


@given(
    clean_passes("dram", byte_counter=False),
    st.integers(-300, 300).filter(bool),
    st.sampled_from(["l1_hit_tokens", "chunks"]),
)
def test_a_second_source_that_disagrees_is_a_reason(p: Pass, off: int, name: str) -> None:
    changed = replace(p.after, witness={**p.after.witness, name: p.after.witness[name] + off})
    assert any("second source" in r and name in r for r in replace(p, after=changed).judged().reasons)


@pytest.mark.parametrize("name", COUNTERS)
@given(p=clean_passes())
def test_a_counter_that_went_backwards_is_a_reason(name: str, p: Pass) -> None:
    changed = replace(p, before=replace(p.before, **{name: getattr(p.after, name) + 1}))
    assert any(f"counter {name} went backwards" in r for r in changed.judged().reasons)


@pytest.mark.parametrize("name", COUNTERS)
@given(p=clean_passes())
def test_a_counter_that_vanishes_during_the_pass_is_a_reason(name: str, p: Pass) -> None:
    assert any(name in r for r in replace(p, after=replace(p.after, **_unknown(name))).judged().reasons)


def _sticks(p: Pass, name: str) -> Pass:
    return replace(p, after=replace(p.after, **{name: getattr(p.before, name)}))


@pytest.mark.parametrize("name", ["dram_hit_tokens", "loaded_bytes", "computed_tokens", "queries", "requests"])
@given(p=clean_passes("dram", byte_counter=True))
def test_a_counter_that_sticks_is_a_reason(name: str, p: Pass) -> None:
    assert _sticks(p, name).judged().reasons


@pytest.mark.parametrize("name", ["hbm_hit_tokens", "dram_hit_tokens", "computed_tokens", "queries"])
@given(p=clean_passes("dram"))
def test_what_the_engine_does_not_count_is_a_reason(name: str, p: Pass) -> None:
    blind = replace(p, before=replace(p.before, **_unknown(name)), after=replace(p.after, **_unknown(name)))
    assert any("does not say" in r for r in blind.judged().reasons)


@given(clean_passes("dram", byte_counter=True))
def test_bytes_that_are_expected_and_not_counted_are_a_reason(p: Pass) -> None:
    blind = replace(p, before=replace(p.before, loaded_bytes=None), after=replace(p.after, loaded_bytes=None))
    assert any("how many bytes were loaded" in r for r in blind.judged().reasons)


@given(clean_passes("dram", byte_counter=False))
def test_hits_without_bytes_and_without_a_second_source_are_a_reason(p: Pass) -> None:
    alone = replace(p, expected=replace(p.expected, witness={}))
    assert any("no second source" in r for r in alone.judged().reasons)
    nothing = replace(
        p,
        expected=replace(p.expected, witness=dict.fromkeys(p.expected.witness, 0)),
        after=replace(p.after, witness=p.before.witness),
    )
    assert any("no second source" in r for r in nothing.judged().reasons)


@given(clean_passes("dram", byte_counter=False))
def test_a_second_source_that_is_silent_is_a_reason(p: Pass) -> None:
    for sides in (("before", "after"), ("before",), ("after",)):
        silent = replace(p, **{side: replace(getattr(p, side), witness={}) for side in sides})
        assert sum("second source does not say" in r for r in silent.judged().reasons) == 2


@given(clean_passes("dram", byte_counter=False))
def test_a_load_of_no_byte_is_a_reason_even_where_the_layout_is_unknown(p: Pass) -> None:
    assert any("no byte was loaded" in r for r in _sticks(p, "loaded_bytes").judged().reasons)


@given(clean_passes().filter(lambda p: p.tier in {"dram", "disk", "partial"}))
def test_without_overwritten_hbm_a_load_that_copies_nothing_would_pass(p: Pass) -> None:
    assert replace(p, poisoned=False).judged().reasons == [gate.NOT_OVERWRITTEN]


@given(clean_passes().filter(lambda p: p.tier in {"hbm", "none"}))
def test_hbm_and_cold_passes_need_no_overwritten_hbm(p: Pass) -> None:
    assert replace(p, poisoned=False).judged().satisfied


@given(clean_passes(), st.booleans())
def test_other_clients_stop_the_run_unless_the_server_is_shared(p: Pass, running_before: bool) -> None:
    assert p.after.requests is not None
    busy = replace(p, after=replace(p.after, requests=p.after.requests + 1))
    assert any("other clients" in r for r in busy.judged().reasons)
    assert replace(busy, shared=True).judged().satisfied
    side = "before" if running_before else "after"
    running = replace(p, **{side: replace(getattr(p, side), running=2)})
    assert any(f"2 requests were running {side} ours" in r for r in running.judged().reasons)
    assert replace(running, shared=True).judged().satisfied


@given(clean_passes("dram"))
def test_a_server_that_counts_no_requests_is_judged_by_its_computed_tokens(p: Pass) -> None:
    blind = replace(p, before=replace(p.before, requests=None), after=replace(p.after, requests=None))
    assert blind.judged().satisfied
    both = replace(
        blind, before=replace(blind.before, computed_tokens=None), after=replace(blind.after, computed_tokens=None)
    )
    assert any("cannot be ruled out" in r for r in both.judged().reasons)


@given(clean_passes(), st.data())
def test_failed_requests_and_odd_usage_are_reasons(p: Pass, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(p.answers) - 1))

    def with_answer(**changes: Any) -> list[str]:
        answers = list(p.answers)
        answers[index] = replace(answers[index], **changes)
        return replace(p, answers=tuple(answers)).judged().reasons

    assert any("requests failed: boom" in r for r in with_answer(error="boom"))
    assert with_answer(cached_tokens=p.answers[index].cached_tokens + 16)
    assert with_answer(prompt_tokens=p.answers[index].prompt_tokens + 1)
    if p.tier != "none":
        assert with_answer(cached_tokens=-1) == []


@pytest.mark.parametrize(
    ("tier", "words"),
    [
        ("dram", ["nothing to hit in dram"]),
        ("hbm", ["nothing to hit in HBM"]),
        ("partial", ["nothing to hit in HBM", "nothing to hit in dram"]),
        ("none", ["nothing to compute"]),
    ],
)
def test_a_pass_that_sends_and_expects_nothing_proves_nothing(tier: str, words: list[str]) -> None:
    reasons = Pass(tier, Evidence(), Evidence(), Expected(0, 0, 0), (), EngineInfo("engine", "model")).judged().reasons
    assert any("no request was sent" in r for r in reasons)
    assert [w for w in words if any(w in r for r in reasons)] == words
    assert sum("nothing to" in r for r in reasons) == len(words)


@given(clean_passes())
def test_an_unknown_tier_is_an_error_of_ours(p: Pass) -> None:
    with pytest.raises(ValueError, match="arm_tier 'l2'"):
        replace(p, tier="l2").judged()


@given(clean_passes("dram"))
def test_what_speaks_for_the_tier_is_listed(p: Pass) -> None:
    expected = [f"loaded bytes {p.expected.loaded_bytes}"] if p.expected.loaded_bytes else []
    expected += [f"{name} {n}" for name, n in p.expected.witness.items()]
    assert p.judged().witnesses == [*expected, "HBM overwritten before the pass"]
    assert replace(p, poisoned=False).judged().witnesses == expected
    nothing = replace(_sticks(p, "loaded_bytes").after, witness=p.before.witness)
    assert replace(p, after=nothing).judged().witnesses == ["HBM overwritten before the pass"]


@given(clean_passes())
def test_a_counter_of_requests_that_sticks_is_told_from_other_clients(p: Pass) -> None:
    assert any("did not move" in r for r in _sticks(p, "requests").judged().reasons)


@given(clean_passes("dram"))
def test_a_pass_that_hbm_or_the_disk_served_or_that_was_computed_is_no_dram_pass(p: Pass) -> None:
    hits = p.expected.hit_tokens
    for other in ("hbm_hit_tokens", "disk_hit_tokens", "computed_tokens"):
        moved = replace(_sticks(p, "dram_hit_tokens").after, **{other: getattr(p.after, other) + hits})
        reasons = replace(p, after=moved).judged().reasons
        assert any(r.startswith("dram hit 0 tokens") for r in reasons)
        assert len(reasons) >= 2
