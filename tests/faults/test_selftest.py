"""The self-test as a whole: children, events, verdict."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from kvverify.cli.selftest import command
from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    Event,
    FaultPlanted,
    KernelProbed,
    RunFinished,
    RunStarted,
    Verdict,
)
from kvverify.faults.catalogue import fault_named
from kvverify.kernels.registry import resolve
from kvverify.layout.pool import campaign_pool
from kvverify.report.folder import RunFolder
from kvverify.report.log import read_events
from kvverify.roundtrip.selftest import SelfTest, plantable, selftest
from kvverify.verdicts import verdict_of

BLIND_KERNEL = '''
from kvverify.kernels.torch_reference import TorchReference


class Blind(TorchReference):
    """Refuses every layout with scales."""

    name = "blind"

    def supports(self, layout):
        return True if layout.formats == ("bf16",) else "bf16 only"


class Broken(TorchReference):
    """Leaves the last byte of a block's first layer."""

    name = "broken"

    def load(self, host_slots, block_ids, *, group=0):
        rows = [b * 1 for b in block_ids]
        view = self.views[0].view(__import__("torch").uint8)
        before = view[rows, -1, -1, -1].clone()
        super().load(host_slots, block_ids, group=group)
        view[rows, -1, -1, -1] = before

    def prepare(self, arena):
        self.views = arena.layers
        super().prepare(arena)

    def supports(self, layout):
        return True if layout.formats == ("bf16",) and len(layout.layers[0].shape) == 3 and all(
            x.rows_per_block == 1 for x in layout.layers) else "simple bf16 only"
'''


def _run(*faults: str, kernels: tuple[str, ...] = ("torch",), **changes: Any) -> list[Event]:
    plan = SelfTest(
        sources=tuple(resolve(k) for k in kernels),
        faults=tuple(map(fault_named, faults)),
        seed=5,
        given=True,
        recipes=campaign_pool()[:16],
    )
    found: list[Event] = [RunStarted(command="selftest", version="0", seed=5, options={})]
    selftest(dataclasses.replace(plan, **changes), found.append, lambda name, _: name, lambda *_: None)
    return [*found, RunFinished(seconds=1.0)]


def _planted(events: list[Event]) -> dict[str, FaultPlanted]:
    return {e.fault: e for e in events if isinstance(e, FaultPlanted)}


def test_faults_are_killed_and_the_control_compares_bytes(torch: ModuleType) -> None:
    events = _run("F04", "K05", "F09")
    met = _planted(events)
    assert [(e.outcome, e.by) for e in met.values()] == [
        ("killed", "wrong-bytes"),
        ("killed", "contract"),
        ("killed", "wrong-bytes"),
    ]
    assert met["F04"].examples >= 1 and "v_scale, v_min" in met["F04"].headline  # noqa: PT018
    batches = [e for e in events if isinstance(e, BatchFinished)]
    assert batches and all(b.compared_bytes > 0 for b in batches)  # noqa: PT018
    assert verdict_of(events) is Verdict.PASS


def test_the_same_seed_gives_the_same_table(torch: ModuleType) -> None:
    again = [
        {f: (e.outcome, e.by, e.examples, e.headline) for f, e in _planted(_run("F16", "K12")).items()} for _ in "ab"
    ]
    assert again[0] == again[1]


def test_a_fault_that_nothing_sees_fails_the_run(torch: ModuleType) -> None:
    # F02 shows on layouts with K and V apart; told that it shows everywhere, it is looked for where it changes nothing
    everywhere = dataclasses.replace(fault_named("F02"), shows=lambda *_: None)
    events = _run(faults=(everywhere,), recipes=campaign_pool()[:2])
    survivor = _planted(events)["F02"]
    assert (survivor.outcome, survivor.examples) == ("survived", 192)  # 6 portions of 16 programs on 2 layouts
    assert verdict_of(events) is Verdict.FAIL


def test_what_a_kernel_cannot_show_is_named(torch: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(BLIND_KERNEL)
    events = _run("F04", "F21", kernels=(f"{path}:Blind",))
    met = _planted(events)
    assert (met["F04"].outcome, met["F04"].reason) == ("n/a", "the kernel refuses every layout that can show it")
    assert met["F21"].outcome == "killed"
    refused = next(e for e in events if isinstance(e, CampaignStarted)).refused
    assert set(refused.values()) == {"bf16 only"}


def test_a_kernel_that_is_broken_without_a_fault_fails_its_control(torch: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(BLIND_KERNEL)
    events = _run("F21", kernels=(f"{path}:Broken",))
    assert verdict_of(events) is Verdict.FAIL
    texts = [getattr(e, "headline", "") for e in events]
    assert any(text.startswith("without any planted fault: ") for text in texts)


def test_a_named_kernel_that_does_not_run_is_a_gap_and_another_is_left_out(torch: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "needs.py"
    path.write_text("import not_installed_anywhere\nclass K: ...\n")
    events = _run("F21", kernels=("torch", f"{path}:K"))
    probes = {e.kernel: e.available for e in events if isinstance(e, KernelProbed)}
    assert probes == {"torch": True, "needs.py:K": False}
    assert verdict_of(events) is Verdict.INCONCLUSIVE
    assert verdict_of(_run("F21", kernels=(f"{path}:K",))) is Verdict.ERROR  # nothing that was asked for can be done
    left: list[str] = []
    plan = SelfTest((resolve(f"{path}:K"),), (fault_named("F21"),), seed=1)
    selftest(
        plan, lambda _: pytest.fail("no event expected"), lambda name, _: name, lambda kernel, _: left.append(kernel)
    )
    assert left == ["needs.py:K"]


def test_the_default_plants_all_that_a_copy_can_show() -> None:
    assert all(not fault.elsewhere for fault in plantable())
    assert len(plantable()) >= 30


def test_the_command_prints_the_table_and_resumes(torch: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["--kernel", "torch", "--fault", "F07", "--seed", "3", "--out", str(out)]
    first = CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
    assert first.return_value == 0
    assert "F07 word-remainder" in first.output
    assert "killed by wrong-bytes" in first.output
    again = CliRunner().invoke(command, ["--resume", str(out)], standalone_mode=False, catch_exceptions=False)
    assert again.return_value == 0
    planted = [e for e in read_events(RunFolder(out).events) if isinstance(e, FaultPlanted)]
    assert len(planted) == 1
