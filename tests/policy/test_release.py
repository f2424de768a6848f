"""Release policies: each requirement met, broken and not looked at; known findings until the day they expire."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run
from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    CodecCompared,
    ConfigurationChecked,
    Event,
    FailureFound,
    FaultPlanted,
    GateEvaluated,
    KernelProbed,
    Verdict,
)
from kvverify.policy.judge import Judged, judge_runs
from kvverify.policy.known import matches
from kvverify.policy.load import LoadedPolicy, load_policy
from kvverify.policy.model import KnownFinding, ReleasePolicy
from kvverify.report.signoff.gather import gather
from kvverify.report.signoff.requirement import Requirement
from kvverify.report.signoff.signoff import make_signoff
from tests.policy.recorded import around, comparison, difference, isolation
from tests.run_folder import write

TODAY = dt.date(2026, 12, 1)
H200 = Path(__file__).parents[2] / "results" / "h200"
KNOWN = KnownFinding(kernel="slots", fingerprint="abc", why="not called", report="LMCache/LMCache#1", expires=TODAY)


def campaign(
    kernel: str = "slots", *, sequences: int = 500, failures: tuple[str, ...] = (), device: str = "cuda"
) -> list[Event]:
    found = [
        FailureFound(
            batch=n,
            kernel=kernel,
            layout="l",
            kind="wrong-bytes",
            step=1,
            headline="h",
            details=[],
            path="",
            fingerprint=name,
        )
        for n, name in enumerate(failures)
    ]
    batch = BatchFinished(
        batch=0,
        kernel=kernel,
        layout="l",
        order="LBNHC",
        sequences=sequences,
        steps={"store": 1},
        formats={"bf16": sequences, "turboquant_4bit_nc": sequences},
        lengths={"3": sequences},
        compared_bytes=10**10,
        moved_bytes=10**6,
        seconds=1.0,
    )
    start = CampaignStarted(kernel=kernel, layouts={"l": ["bf16", "turboquant_4bit_nc"]}, refused={})
    probe = KernelProbed(kernel=kernel, available=True, provenance={"library": "lmcache", "version": "0.5.3"})
    return around("roundtrip", [probe, start, *found, batch], device=device)


def selftest(*outcomes: str) -> list[Event]:
    planted = [FaultPlanted(fault=f"F{n:02}", name="x", kernel="torch", outcome=o) for n, o in enumerate(outcomes)]
    return around("selftest", planted)


def judged(folder: Path, policy: ReleasePolicy, *runs: list[Event], today: dt.date = TODAY) -> Judged:
    paths = [write(folder / f"run{n}", events) for n, events in enumerate(runs)]
    return judge_runs(LoadedPolicy("own", "0" * 64, policy), gather(paths), today)


def asked(**parts: Any) -> ReleasePolicy:
    return ReleasePolicy(version=1, title="T", kind="release", **parts)


def one(folder: Path, policy: ReleasePolicy, *runs: list[Event]) -> Requirement:
    requirements = judged(folder, policy, *runs).judgement.requirements
    assert len(requirements) == 1
    return requirements[0]


ROUNDTRIP = asked(check=[{"command": "roundtrip"}])


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([campaign()], Verdict.PASS),
        ([campaign(), campaign("other", failures=("abc",))], Verdict.FAIL),
        ([campaign()[:-1]], Verdict.INCONCLUSIVE),
        ([selftest("killed")], Verdict.INCONCLUSIVE),
    ],
)
def test_a_required_check_is_as_good_as_its_worst_run(
    tmp_path: Path, runs: list[list[Event]], verdict: Verdict
) -> None:
    assert one(tmp_path, ROUNDTRIP, *runs).verdict is verdict


def test_a_policy_may_take_inconclusive_for_an_answer(tmp_path: Path) -> None:
    policy = asked(check=[{"command": "roundtrip", "verdicts": ["PASS", "INCONCLUSIVE"]}])
    assert one(tmp_path, policy, campaign()[:-1]).verdict is Verdict.PASS


def test_too_few_runs_are_named(tmp_path: Path) -> None:
    found = one(tmp_path, asked(check=[{"command": "roundtrip", "runs": 3}]), campaign())
    assert (found.verdict, found.missing) == (Verdict.INCONCLUSIVE, "2 runs of kvverify roundtrip")


@pytest.mark.parametrize(
    ("coverage", "verdict", "missing"),
    [
        ({"sequences": 500}, Verdict.PASS, ""),
        ({"sequences": 501}, Verdict.INCONCLUSIVE, "1 kernel more"),
        ({"compared_bytes": 10**11}, Verdict.INCONCLUSIVE, "1 kernel more"),
        ({"kernels": ["slots"], "gpu": True}, Verdict.PASS, ""),
        ({"kernels": ["slots", "torch"]}, Verdict.INCONCLUSIVE, "torch not run"),
        ({"kernel_count": 3}, Verdict.INCONCLUSIVE, "2 kernels more"),
    ],
)
def test_coverage_of_kernels(tmp_path: Path, coverage: dict[str, Any], verdict: Verdict, missing: str) -> None:
    found = one(tmp_path, asked(coverage=coverage), campaign())
    assert (found.verdict, found.missing) == (verdict, missing)


def test_coverage_on_a_gpu_is_not_that_on_the_cpu(tmp_path: Path) -> None:
    assert one(tmp_path, asked(coverage={"gpu": True}), campaign(device="cpu")).verdict is Verdict.INCONCLUSIVE


def test_a_format_that_no_kernel_met_is_named(tmp_path: Path) -> None:
    requirements = judged(
        tmp_path, asked(coverage={"formats": ["bf16", "fp8_e4m3"]}), campaign()
    ).judgement.requirements
    assert (requirements[1].verdict, requirements[1].missing) == (Verdict.INCONCLUSIVE, "fp8_e4m3")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (("killed", "killed"), Verdict.PASS),
        (("killed", "survived"), Verdict.FAIL),
        (("killed", "n/a"), Verdict.INCONCLUSIVE),
    ],
)
def test_planted_faults(tmp_path: Path, outcomes: tuple[str, ...], verdict: Verdict) -> None:
    assert one(tmp_path, asked(planted_faults={}), selftest(*outcomes)).verdict is verdict
    assert one(tmp_path / "none", asked(planted_faults={}), campaign()).verdict is Verdict.INCONCLUSIVE


def gate(request: int, *, reasons: tuple[str, ...] = ()) -> GateEvaluated:
    return GateEvaluated(
        arm="dram",
        round=0,
        request=request,
        reasons=list(reasons),
        counted={"dram_hit_tokens": 64},
        expected={"lower": "dram"},
    )


def test_proofs_of_the_tier_are_counted(tmp_path: Path) -> None:
    policy = asked(tier={"proved": 3})
    open_ = around("tier-diff", [gate(0), gate(1), gate(2, reasons=("no loaded bytes",))])
    assert one(tmp_path / "a", policy, open_).missing == "1 more"
    assert one(tmp_path / "b", policy, around("tier-diff", [gate(n) for n in range(3)])).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("run_", "verdict"),
    [
        (isolation(), Verdict.PASS),
        (isolation(sessions=16, rounds=20), Verdict.INCONCLUSIVE),
        (isolation(right=639), Verdict.FAIL),
        (isolation(foreign=1), Verdict.FAIL),
    ],
)
def test_480_of_480(tmp_path: Path, run_: list[Event], verdict: Verdict) -> None:
    assert one(tmp_path, asked(isolation={"answers": 480}), run_).verdict is verdict


MARGIN = {"effect": "format", "points": 1.0, "suite": "ruler", "published": "within 1 point"}


@pytest.mark.parametrize(
    ("measured", "verdict", "words"),
    [
        (difference(value=-0.002), Verdict.PASS, "-0.20 points, inside the bar as published"),
        # the point estimate is inside the published bar, and the interval is not
        (difference(value=-0.008), Verdict.INCONCLUSIVE, "-0.80 points, inside the bar as published"),
        (difference(value=-0.03), Verdict.FAIL, "-3.00 points, outside the bar as published"),
        (
            difference(value=-0.002, confidence=0.8),
            Verdict.INCONCLUSIVE,
            "the interval is one at 80.0%, asked is 90.0%",
        ),
        (difference(value=-0.002, power_reached=0.5), Verdict.INCONCLUSIVE, "too few for a power of 80%"),
        (difference(value=-0.002, undefined="one cluster"), Verdict.INCONCLUSIVE, "no interval: one cluster"),
        (difference(value=-0.002, missing=80, low_worst=-0.02), Verdict.INCONCLUSIVE, "80 missing samples"),
        (difference("tier", value=-0.03), Verdict.INCONCLUSIVE, "not measured"),
    ],
)
def test_the_interval_decides_and_the_point_estimate_is_shown(
    tmp_path: Path, measured: Any, verdict: Verdict, words: str
) -> None:
    found = one(tmp_path, asked(margin=[MARGIN]), comparison(measured))
    assert found.verdict is verdict, found
    assert words in found.found
    assert found.published == "within 1 point"


def test_another_suite_is_no_evidence(tmp_path: Path) -> None:
    found = one(tmp_path, asked(margin=[MARGIN]), comparison(difference(), suite="gsm8k"))
    assert (found.verdict, found.found) == (Verdict.INCONCLUSIVE, "not measured")


def test_a_cache_that_was_never_read_is_no_evidence(tmp_path: Path) -> None:
    found = one(tmp_path, asked(margin=[MARGIN]), comparison(difference(), packed_reads=0))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "no token was read from the cache in its stored format" in found.found


def test_a_tighter_margin_needs_more_pairs_than_the_run_planned(tmp_path: Path) -> None:
    tight = {**MARGIN, "points": 0.4}
    found = one(tmp_path, asked(margin=[tight]), comparison(difference(half=0.003, pairs=6500)))
    # 1,237 pairs for a point are 1,237 / 0.4^2 = 7,732 for 0.4 points
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.missing == "about 1,232 pairs"


def test_two_models_are_not_one(tmp_path: Path) -> None:
    second = comparison(difference(), identity={"model": "other"})
    found = judged(
        tmp_path, asked(check=[{"command": "accuracy compare"}], same=["model"]), comparison(difference()), second
    )
    assert found.judgement.requirements[1].verdict is Verdict.INCONCLUSIVE
    assert found.judgement.requirements[1].found == "smol, other"


@pytest.mark.parametrize(("days", "verdict"), [(-30, Verdict.PASS), (0, Verdict.PASS), (1, Verdict.FAIL)])
def test_a_known_finding_is_excused_until_it_expires(tmp_path: Path, days: int, verdict: Verdict) -> None:
    policy, today = asked(check=[{"command": "roundtrip"}], known_finding=[KNOWN]), TODAY + dt.timedelta(days)
    answer = judged(tmp_path, policy, campaign(failures=("abc",)), today=today)
    (excuse,) = answer.judgement.excuses
    assert answer.judgement.verdict is verdict
    assert (excuse.expired, excuse.matched, excuse.expires) == (days > 0, 1, str(TODAY))


def test_a_new_failure_beside_a_known_one_still_fails(tmp_path: Path) -> None:
    policy = asked(check=[{"command": "roundtrip"}], known_finding=[KNOWN])
    assert judged(tmp_path, policy, campaign(failures=("abc", "new"))).judgement.verdict is Verdict.FAIL


@pytest.mark.parametrize(("day", "verdict"), [(TODAY, Verdict.PASS), (dt.date(2028, 1, 1), Verdict.FAIL)])
def test_the_example_of_a_users_own_policy_is_green_until_its_findings_expire(day: dt.date, verdict: Verdict) -> None:
    runs = gather([H200 / "roundtrip", H200 / "selftest"])
    answer = judge_runs(load_policy(str(H200 / "kernels-with-known-findings.toml")), runs, day)
    assert answer.judgement.verdict is verdict
    assert all(excuse.matched for excuse in answer.judgement.excuses)
    signoff = make_signoff(runs, made="now", judged=answer.runs, judgement=answer.judgement, known=answer.known)
    assert all(group.known for group in signoff.groups) is (verdict is Verdict.PASS)
    bytes_ = signoff.questions[0]
    assert (bytes_.answer.startswith("Known findings left out: Yes, in every one of 8.52 TiB")) is (
        verdict is Verdict.PASS
    )
    if verdict is Verdict.PASS:
        assert answer.judgement.requirements[0].found == "roundtrip PASS but for 14 known failures"


def test_a_failure_that_the_users_policy_does_not_name_is_red_at_once(tmp_path: Path) -> None:
    policy = load_policy(str(H200 / "kernels-with-known-findings.toml"))
    runs = gather(
        [
            H200 / "roundtrip",
            H200 / "selftest",
            write(tmp_path / "new", campaign("lmcache-slots", failures=("wrong-bytes-0",))),
        ]
    )
    requirements = {r.name: r for r in judge_runs(policy, runs, TODAY).judgement.requirements}
    assert requirements["roundtrip passes"].verdict is Verdict.FAIL
    assert "new FAIL (new: kernel lmcache-slots: 1 failure)" in requirements["roundtrip passes"].found


def test_a_known_finding_stays_on_the_page_and_out_of_the_questions(tmp_path: Path) -> None:
    policy = asked(check=[{"command": "roundtrip"}], known_finding=[KNOWN])
    path = write(tmp_path / "run", campaign(failures=("abc",)))
    runs = gather([path])
    answer = judge_runs(LoadedPolicy("own", "0", policy), runs, TODAY)
    signoff = make_signoff(runs, made="now", judged=answer.runs, judgement=answer.judgement, known=answer.known)
    assert (signoff.verdict, signoff.questions[0].verdict) == (Verdict.PASS, Verdict.PASS)
    assert [d.known for d in signoff.defects] == ["not called (until 2026-12-01)"]
    assert "1 finding excused as known" in signoff.line


@pytest.mark.parametrize(
    ("event", "finding", "fits"),
    [
        (FaultPlanted(fault="F16", name="x", kernel="k", outcome="survived"), {"fault": "F16"}, True),
        (FaultPlanted(fault="F16", name="x", kernel="k", outcome="survived"), {"fault": "F16", "kernel": "j"}, False),
        (FaultPlanted(fault="F16", name="x", kernel="k", outcome="killed"), {"fault": "F16"}, False),
        (FaultPlanted(fault="F16", name="x", kernel="k", outcome="survived"), {"kernel": "k"}, False),
        (ConfigurationChecked(check="KV dtype", outcome="fault"), {"configuration": "KV dtype"}, True),
        (ConfigurationChecked(check="KV dtype", outcome="unknown"), {"configuration": "KV dtype"}, False),
        (
            _codec := CodecCompared(
                library="l", format="f", head_size=1, what="w", compared_bytes=9, different_bytes=1
            ),
            {"library": "l"},
            True,
        ),
        (_codec, {"library": "l", "format": "g"}, False),
    ],
)
def test_what_a_known_finding_covers(event: Event, finding: dict[str, str], fits: bool) -> None:
    assert matches(KnownFinding(why="w", expires=TODAY, **finding), event) is fits


def test_nothing_run_is_never_a_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "empty", [])
    assert judge_runs(load_policy("release"), gather([path]), TODAY).judgement.verdict is Verdict.INCONCLUSIVE
    assert run(["report", str(path), "--policy", "release", "--out", str(tmp_path / "out")]) == 3


def test_all_of_the_published_bar_met_is_a_pass(tmp_path: Path) -> None:
    """Good runs of every kind pass release.toml but for the tier-diff, whose own rules need a whole run; with it out, PASS."""
    release = load_policy("release").policy
    assert isinstance(release, ReleasePolicy)
    policy = release.model_copy(update={"check": [c for c in release.check if c.command != "tier-diff"]})
    gates = around("tier-diff", [gate(n) for n in range(32)])
    claims = [difference(value=-0.002), difference("tier", half=0.003, margin=0.004)]
    answer = judged(tmp_path, policy, campaign(), selftest("killed"), isolation(), gates, comparison(*claims))
    assert [r for r in answer.judgement.requirements if r.verdict is not Verdict.PASS] == []


@pytest.mark.parametrize("bad", [difference(value=-0.03), difference("tier", value=-0.03)])
def test_a_loss_breaks_the_published_bar(tmp_path: Path, bad: Any) -> None:
    answer = judge_runs(load_policy("release"), gather([write(tmp_path / "bad", comparison(bad))]), TODAY)
    assert answer.judgement.verdict is Verdict.FAIL
