"""Campaigns as a whole: what they emit, how they end, and that an interruption changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    Event,
    FailureFound,
    KernelProbed,
    ProblemMet,
    RunFinished,
    Verdict,
)
from kvverify.kernels.registry import resolve
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from kvverify.report.log import read_events
from kvverify.roundtrip.campaign import PROFILES, Campaign, Plan, Profile
from kvverify.verdicts import reasons, verdict_of

EVIL = Path(__file__).with_name("evil.py")
E = TypeVar("E", bound=Event)
RECIPES = campaign_pool()[:6]


def run_campaign(
    *specs: str, examples: int = 40, earlier: list[Event] | None = None, seed: int = 5, **choices: Any
) -> tuple[list[Event], dict[str, Any]]:
    events: list[Event] = []
    files: dict[str, Any] = {}

    def save(name: str, document: dict[str, Any]) -> str:
        files[name] = document
        return f"failures/{name}.json"

    plan = Plan(
        sources=tuple(resolve(spec) for spec in specs),
        recipes=RECIPES,
        seed=seed,
        profile=Profile("tests", batch=16, max_steps=14),
        examples=examples,
        **choices,
    )
    Campaign(plan, events.append, save, earlier or []).run()
    return events, files


def of_type(events: list[Event], kind: type[E]) -> list[E]:
    return [e for e in events if isinstance(e, kind)]


def without_times(events: list[Event]) -> list[Event]:
    found = [dataclasses.replace(e, at=0.0) for e in events if isinstance(e, BatchFinished | FailureFound)]
    return [dataclasses.replace(e, seconds=0.0) if isinstance(e, BatchFinished) else e for e in found]


def test_a_clean_kernel_runs_every_sequence_it_was_asked_for(torch: ModuleType) -> None:
    events, files = run_campaign("torch", examples=40)
    batches = of_type(events, BatchFinished)
    assert [b.sequences for b in batches] == [16, 16, 8]
    assert sum(sum(b.lengths.values()) for b in batches) == 40
    assert all(int(n) >= 8 for b in batches for n in b.lengths)
    assert not files
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.PASS


def test_compared_bytes_are_whole_arenas(torch: ModuleType) -> None:
    events, _ = run_campaign("torch", examples=16)
    (batch,) = of_type(events, BatchFinished)
    layout = place(RECIPES[0])
    assert batch.layout == layout.name
    assert batch.compared_bytes >= batch.sequences * layout.size_bytes


def test_the_same_seed_does_the_same_and_another_does_not(torch: ModuleType) -> None:
    first, again, other = (run_campaign("torch", examples=32, seed=s)[0] for s in (5, 5, 6))
    assert without_times(first) == without_times(again)
    assert without_times(first) != without_times(other)


def test_a_resumed_campaign_ends_as_an_uninterrupted_one(torch: ModuleType) -> None:
    spec = f"{EVIL}:CutsTheTail"
    whole, files = run_campaign(spec, examples=64)
    cut = next(i for i, e in enumerate(whole) if isinstance(e, BatchFinished) and e.batch == 1) + 1
    earlier = whole[:cut]
    rest, again = run_campaign(spec, examples=64, earlier=earlier)
    assert without_times([*earlier, *rest]) == without_times(whole)
    assert set(again) < set(files)
    assert all(files[name]["program"] == document["program"] for name, document in again.items())


def test_a_failure_of_an_unfinished_batch_is_not_told_twice(torch: ModuleType) -> None:
    spec = f"{EVIL}:CutsTheTail"
    whole, _ = run_campaign(spec, examples=16)
    found = next(i for i, e in enumerate(whole) if isinstance(e, FailureFound))
    rest, _ = run_campaign(spec, examples=16, earlier=whole[: found + 1])  # killed between failure and end of batch
    assert not of_type(rest, FailureFound)
    assert of_type(rest, BatchFinished)


def test_a_broken_kernel_is_not_beaten_forever(torch: ModuleType) -> None:
    events, files = run_campaign(f"{EVIL}:Raises", examples=480)
    assert len({e.batch for e in of_type(events, FailureFound)}) == 5
    assert len(files) == 5


def test_the_only_kernel_that_was_asked_for_and_is_not_there_is_an_error(torch: ModuleType) -> None:
    events, _ = run_campaign(f"{EVIL}:NoSuchKernel")
    (probe,) = of_type(events, KernelProbed)
    assert not probe.available
    assert "NoSuchKernel" in probe.reason
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.ERROR


def test_one_of_several_kernels_that_is_not_there_makes_the_run_inconclusive(torch: ModuleType) -> None:
    events, _ = run_campaign("torch", f"{EVIL}:NoSuchKernel", examples=16)
    assert [p.available for p in of_type(events, KernelProbed)] == [True, False]
    ended: list[Event] = [*events, RunFinished(seconds=1.0)]
    assert verdict_of(ended) is Verdict.INCONCLUSIVE
    assert any("NoSuchKernel did not run" in reason.text for reason in reasons(ended))
    assert {e.kernel for e in of_type(events, BatchFinished)} == {"torch"}


def test_a_kernel_that_nobody_named_may_be_missing(torch: ModuleType) -> None:
    events, _ = run_campaign("torch", f"{EVIL}:NoSuchKernel", examples=16, named=False)
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.PASS


def test_what_the_machine_lacks_when_a_kernel_is_prepared_is_no_failure_of_the_kernel(torch: ModuleType) -> None:
    events, files = run_campaign(f"{EVIL}:NeedsMemory")
    (problem,) = of_type(events, ProblemMet)
    assert "/dev/shm has 1 KiB free; needs 2 GiB" in problem.problem
    assert not files
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.ERROR


def test_no_examples_is_never_a_pass(torch: ModuleType) -> None:
    events, _ = run_campaign("torch", examples=0)
    assert not of_type(events, BatchFinished)
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.INCONCLUSIVE


def test_a_contract_breach_is_an_error_and_names_the_kernel(torch: ModuleType) -> None:
    events, _ = run_campaign(f"{EVIL}:Undecided")
    (problem,) = of_type(events, ProblemMet)
    assert "undecided" in problem.problem
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.ERROR


def test_a_host_tier_that_is_not_handed_out_is_named_in_the_report(torch: ModuleType) -> None:
    events, _ = run_campaign(f"{EVIL}:HidesItsHost", examples=16)
    (started,) = of_type(events, CampaignStarted)
    assert any("host side not checked" in note for note in started.notes)
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.PASS


def test_a_layout_without_room_for_one_load_is_refused_and_never_passes(torch: ModuleType) -> None:
    # stores alone compared bytes, so a kernel that loads nothing passed where a slot takes more blocks than there are
    events, files = run_campaign(f"{EVIL}:WholeSlots", examples=16)
    (started,) = of_type(events, CampaignStarted)
    blocks = {place(r).name: len(place(r).blocks) for r in RECIPES}
    assert {name for name, count in blocks.items() if count < 8} == set(started.refused)
    assert "7 blocks, and a load of this kernel takes 8 or more" in started.refused.values()
    assert files
    events, _ = run_campaign(f"{EVIL}:HugeSlots", examples=16)
    assert verdict_of([*events, RunFinished(seconds=1.0)]) is Verdict.INCONCLUSIVE


def kvverify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvverify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_kill_dash_nine_and_resume_give_the_uninterrupted_result(torch: ModuleType, tmp_path: Path) -> None:
    kernel = f"{EVIL}:CutsTheTail"
    arguments = ["roundtrip", "--kernel", kernel, "--examples", "48", "--seed", "9"]
    whole = kvverify(*arguments, "--out", str(tmp_path / "whole"))
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvverify", *arguments, "--out", str(killed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (killed / "events.ndjson").is_file() and of_type(read_events(killed), BatchFinished):
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = read_events(killed)
    assert not of_type(before, RunFinished), "the kill came too late to test anything"
    resumed = kvverify("roundtrip", "--resume", str(killed))
    assert (resumed.returncode, whole.returncode) == (1, 1), resumed.stderr
    assert without_times(read_events(killed)) == without_times(read_events(tmp_path / "whole"))
    names = [sorted(p.name for p in (run / "failures").iterdir()) for run in (killed, tmp_path / "whole")]
    assert names[0] == names[1]
    for name in names[0]:
        programs = [
            json.loads((run / "failures" / name).read_text())["program"] for run in (killed, tmp_path / "whole")
        ]
        assert programs[0] == programs[1]


def test_a_worker_does_not_outlive_a_killed_run(torch: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvverify", "roundtrip", "--kernel", "torch", "--budget", "60s", "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not ((out / "events.ndjson").is_file() and len(read_events(out)) > 3):
        time.sleep(0.05)
    workers = _children_of(process.pid)
    assert workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(_alive(pid) for pid in workers):
        time.sleep(0.05)
    assert not [pid for pid in workers if _alive(pid)]


def _children_of(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(status.parent.name)
            found += [child, *_children_of(child)]
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_profile_says_when_to_stop(profile: str) -> None:
    chosen = PROFILES[profile]
    assert (chosen.examples is None) is not (chosen.budget_s is None)
