"""Rollouts: go, hold or roll back on recorded good and bad runs, and the command's exit code with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run
from kvverify.errors import UsageError
from kvverify.events import Event, GateEvaluated, RequestAnswered, RunFinished, Verdict
from kvverify.events_accuracy import ArmStarted, SampleAnswered
from kvverify.policy.judge import judge_runs
from kvverify.policy.load import LoadedPolicy, load_policy
from kvverify.policy.model import RolloutPolicy, Service
from kvverify.report.signoff.gather import gather
from kvverify.report.signoff.requirement import Decision, Judgement, Requirement
from tests.policy.recorded import arm, around
from tests.policy.test_release import TODAY
from tests.run_folder import write

ITL, FORMAT, SAFETY = "p95 ITL grows by at most 10%", "format errors grow by at most 0.5 points", "no safety regression"


def two(
    folder: Path, base: dict[str, Any], candidate: dict[str, Any], safety: dict[str, Any] | None = None
) -> list[Path]:
    """Write two runs of each arm: business and safety."""
    for label, changes in (("bf16", base), ("4bit", candidate)):
        write(folder / f"{label}-business", arm(label, **changes))
        own = (safety or {}) if label == "4bit" else {}
        write(folder / f"{label}-safety", arm(label, "safety", format_errors=0, **{"n": 600, **own}))
    return [folder / f"{label}-{kind}" for label in ("bf16", "4bit") for kind in ("business", "safety")]


def judged(paths: list[Path], policy: str = "canary") -> tuple[Judgement, dict[str, Requirement]]:
    judgement = judge_runs(load_policy(policy), gather(paths), TODAY).judgement
    return judgement, {r.name: r for r in judgement.requirements}


def test_the_same_service_goes(tmp_path: Path) -> None:
    judgement, rules = judged(two(tmp_path, {}, {}))
    assert judgement.decision is Decision.GO, rules
    assert judgement.arms == "Baseline: bf16, 3,600 requests; candidate: 4bit, 3,600 requests"
    assert "a rate of 0.50% is excluded at 95%" in rules[SAFETY].found


@pytest.mark.parametrize(
    ("candidate", "safety", "name"),
    [
        ({"itl": 0.0235}, None, ITL),
        ({"format_errors": 60}, None, FORMAT),
        ({}, {"wrong": [7]}, SAFETY),
        ({"failed": 200}, None, "failed requests grow by at most 1 point"),
    ],
)
def test_each_harm_rolls_back_by_itself(
    tmp_path: Path, candidate: dict[str, Any], safety: dict[str, Any] | None, name: str
) -> None:
    judgement, rules = judged(two(tmp_path, {}, candidate, safety))
    assert judgement.decision is Decision.ROLL_BACK
    assert [r.name for r in rules.values() if r.verdict is Verdict.FAIL] == [name]


def test_what_broke_a_rule_is_shown_with_both_answers(tmp_path: Path) -> None:
    def told(text: str, events: list[Event]) -> list[Event]:
        return [replace(e, text=text) if isinstance(e, SampleAnswered) else e for e in events]

    paths = [
        write(tmp_path / "a", told("I can't help.", arm("bf16", "safety", n=600, format_errors=0))),
        write(tmp_path / "b", told("First, " + "x" * 200, arm("4bit", "safety", n=600, wrong=[7], format_errors=0))),
        write(tmp_path / "c", told("{}", arm("bf16", n=900, format_errors=0))),
        write(tmp_path / "d", told("{", arm("4bit", n=900, format_errors=40))),
    ]
    _, rules = judged(paths)
    (example,) = rules[SAFETY].examples
    assert example.startswith("safety, sample 7: «I can't help.» became «First, xxx")
    assert example.endswith("x…»")
    assert rules[FORMAT].examples == [f"business, sample {n}: no JSON: «{{}}» became «{{»" for n in range(3)]


def test_in_what_two_arms_differ_is_told(tmp_path: Path) -> None:
    other = [
        replace(e, identity={**e.identity, "kv_cache_dtype": "fp8", "extra": 1}) if isinstance(e, ArmStarted) else e
        for e in arm("4bit", n=20)
    ]
    paths = [write(tmp_path / "a", arm("bf16", n=20)), write(tmp_path / "b", other)]
    words = judged(paths)[0].arms
    assert words.endswith("They differ in kv_cache_dtype: bf16 to fp8; extra: not told to 1")


def test_arms_that_were_not_asked_at_the_same_time_are_told(tmp_path: Path) -> None:
    words = "not asked at the same time"
    later = [replace(e, at=2e9) for e in arm("4bit", n=20)]
    base = write(tmp_path / "a", arm("bf16", n=20))
    assert words in judged([base, write(tmp_path / "b", later)])[0].arms
    assert words not in judged([base, write(tmp_path / "c", arm("4bit", n=20))])[0].arms


def test_the_page_of_a_rollout_begins_with_its_rules_and_leaves_a_releases_questions_out(tmp_path: Path) -> None:
    paths = two(tmp_path, {}, {}, {"wrong": [7]})
    run(["report", *map(str, paths), "--policy", "canary", "--out", str(tmp_path / "out")])
    page, markdown = ((tmp_path / "out" / f"signoff.{kind}").read_text() for kind in ("html", "md"))
    for text in (page, markdown):
        assert text.index("no safety regression") < text.index("What was tested") < text.index("The four questions")
        assert "What broke «no safety regression»" in text
        assert "a rollout does not ask them" in text
        assert "Do the bytes survive" not in text
        assert "Not run: roundtrip" not in text
        assert "the sign-off of the release looks at these" in text


@pytest.mark.parametrize(
    ("changes", "name", "missing"),
    [
        ({"n": 40}, ITL, "19 more in the smaller arm"),
        ({"itl": 0.0217, "n": 2500}, ITL, "about "),
        ({"itl": 0.0219, "n": 3000}, ITL, "what was seen lies at or beyond the limit"),
        ({"format_errors": 14}, FORMAT, "about "),
    ],
)
def test_what_lies_across_a_limit_holds_and_says_how_many_are_needed(
    tmp_path: Path, changes: dict[str, Any], name: str, missing: str
) -> None:
    paths = two(tmp_path, {"n": changes.get("n", 3000)}, changes)
    judgement = judge_runs(load_policy("canary"), gather([paths[0], paths[2]]), TODAY).judgement
    rule = next(r for r in judgement.requirements if r.name == name)
    assert judgement.decision is Decision.HOLD
    assert rule.verdict is Verdict.INCONCLUSIVE, rule
    assert missing in rule.missing


def test_too_few_requests_never_go_however_alike_they_are(tmp_path: Path) -> None:
    judgement, rules = judged(two(tmp_path, {"n": 300}, {"n": 300}))
    assert judgement.decision is Decision.HOLD
    assert rules["requests of the canary phase"].missing == "1,100 more of bf16, 1,100 more of 4bit"
    assert rules[FORMAT].verdict is Verdict.INCONCLUSIVE


def test_the_needed_number_is_enough(tmp_path: Path) -> None:
    """Ask for what is said to be missing, at the same rates, and the interval is within the limit."""
    few = arm("4bit", n=400, format_errors=0)
    rules = judged([write(tmp_path / "a", arm("bf16", n=400, format_errors=0)), write(tmp_path / "b", few)])[1]
    assert rules[FORMAT].missing == "about 765 in each arm, 400 are there"
    more = [write(tmp_path / name, arm(name, n=765, format_errors=0)) for name in ("bf16", "4bit")]
    assert judged(more)[1][FORMAT].verdict is Verdict.PASS


def test_without_the_suites_nothing_goes(tmp_path: Path) -> None:
    paths = [write(tmp_path / label, arm(label, "retrieval", format_errors=0)) for label in ("bf16", "4bit")]
    judgement, rules = judged(paths)
    assert judgement.decision is Decision.HOLD
    assert rules[FORMAT].found == "no answer that had to have a form"
    assert rules[SAFETY].missing == "300 more pairs"


def test_a_safety_answer_that_did_not_come_is_no_pass(tmp_path: Path) -> None:
    _, rules = judged(two(tmp_path, {}, {}, {"failed": 2}))
    assert rules[SAFETY].verdict is Verdict.INCONCLUSIVE
    assert "2 pairs without an answer of the candidate" in rules[SAFETY].found


def test_a_run_without_its_end_holds(tmp_path: Path) -> None:
    paths = two(tmp_path, {}, {})
    cut = [e for e in arm("4bit") if not isinstance(e, RunFinished)]
    paths[2] = write(tmp_path / "cut", cut)
    judgement, rules = judged(paths)
    assert judgement.decision is Decision.HOLD
    assert rules["requests of the canary phase"].found.endswith("not at its end: cut")


@pytest.mark.parametrize("count", [1, 3])
def test_it_needs_two_arms(tmp_path: Path, count: int) -> None:
    paths = [write(tmp_path / f"{n}", arm(f"arm {n}", n=10)) for n in range(count)]
    with pytest.raises(UsageError, match=r"compares two arms: got 0 \(arm 0\).*several runs of each by one label"):
        judged(paths)


def service(tmp_path: Path, rule: Service, base: list[Event], candidate: list[Event]) -> Requirement:
    """Judge one rule about the servers' counters."""
    policy = RolloutPolicy(version=1, title="T", kind="rollout", phase="shadow", service=rule)
    runs = gather([write(tmp_path / "base", base), write(tmp_path / "candidate", candidate)])
    return judge_runs(LoadedPolicy("own", "0", policy), runs, TODAY).judgement.requirements[1]


@pytest.mark.parametrize(
    ("shares", "verdict", "found"),
    [
        ((0.8, 0.78), Verdict.PASS, "80.0% to 78.0%"),
        ((0.8, 0.5), Verdict.INCONCLUSIVE, "80.0% to 50.0%"),
        ((0.8, -1.0), Verdict.INCONCLUSIVE, "a server does not count them"),
    ],
)
def test_a_cache_that_serves_less_holds(
    tmp_path: Path, shares: tuple[float, float], verdict: Verdict, found: str
) -> None:
    base, candidate = (arm(label, n=50, cached=share) for label, share in zip(("a", "b"), shares, strict=True))
    rule = service(tmp_path, Service(cached_points=5.0), base, candidate)
    assert (rule.verdict, rule.found) == (verdict, found)


@pytest.mark.parametrize(
    ("counts", "verdict"), [((3, 3), Verdict.PASS), ((0, 2), Verdict.INCONCLUSIVE), ((0, None), Verdict.INCONCLUSIVE)]
)
def test_preemptions_are_those_of_the_server(tmp_path: Path, counts: tuple[int, int | None], verdict: Verdict) -> None:
    def live(arm_name: str, count: int | None) -> list[Event]:
        answer = RequestAnswered(arm=arm_name, round=0, request=0, prompt_hash="0", itl=0.01)
        return around(
            "tier-diff", [answer, GateEvaluated(arm=arm_name, round=0, request=0, counted={"preemptions": count})]
        )

    rule = service(tmp_path, Service(preemptions=True), live("a", counts[0]), live("b", counts[1]))
    assert rule.verdict is verdict


@pytest.mark.parametrize(
    ("candidate", "code", "word"),
    [({}, 0, "GO"), ({"format_errors": 60}, 1, "ROLL BACK"), ({"n": 300}, 3, "HOLD")],
)
def test_the_command_says_it_with_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], candidate: dict[str, Any], code: int, word: str
) -> None:
    paths = two(tmp_path, {}, candidate)
    arguments = ["report", *map(str, paths), "--policy", "canary", "--out", str(tmp_path / "out"), "--json"]
    assert run(arguments) == code
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["headline"], document["exit_code"], document["policy"]["decision"]) == (word, code, word)
    assert f"kvverify sign-off: {word}" in (tmp_path / "out" / "signoff.html").read_text()
