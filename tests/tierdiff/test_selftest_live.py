"""What becomes of a fault in a server: killed, declared or survived, and when the self-test itself is worth nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvverify.errors import KvverifyError, UsageError
from kvverify.events import Event, FaultPlanted, ProblemMet, RunFinished, RunStarted, Verdict
from kvverify.tierdiff.selftest_live import LivePlant, SelfTestLive, VllmTarget, judged
from kvverify.verdicts import verdict_of

SEEN = LivePlant("F1", "seen", "breaks", ("tier-diff", "isolation"), "FAIL")
QUIET = LivePlant("F2", "quiet", "breaks", ("tier-diff",), "INCONCLUSIVE")
UNSEEN = LivePlant("F3", "unseen", "breaks", missing="a trace of the copies")


@pytest.mark.parametrize(
    ("plant", "verdict", "outcome"),
    [
        (SEEN, Verdict.FAIL, "killed"),
        (SEEN, Verdict.INCONCLUSIVE, "survived"),
        (SEEN, Verdict.PASS, "survived"),
        (SEEN, Verdict.ERROR, "survived"),
        (QUIET, Verdict.INCONCLUSIVE, "killed"),
        (QUIET, Verdict.FAIL, "killed"),
        (QUIET, Verdict.PASS, "survived"),
        (UNSEEN, Verdict.PASS, "declared"),
        (UNSEEN, Verdict.INCONCLUSIVE, "declared"),
        (UNSEEN, Verdict.FAIL, "killed"),
        (UNSEEN, Verdict.ERROR, "survived"),
    ],
)
def test_only_what_was_declared_may_be_less_than_a_fail(plant: LivePlant, verdict: Verdict, outcome: str) -> None:
    """INCONCLUSIVE is a kill where it was declared; PASS never is."""
    assert judged(plant, verdict, None)[0] == outcome
    assert judged(plant, verdict, 3)[0] == outcome
    assert judged(plant, verdict, 0)[0] == "n/a"


@dataclass
class Target:
    """A server that notes what was switched; ``broken`` cannot be switched to."""

    plants: tuple[LivePlant, ...] = (SEEN, QUIET, UNSEEN)
    broken: str = "-"
    now: str = ""
    switched: list[str] = field(default_factory=list)

    def switch(self, plant: str) -> str:
        if plant == self.broken:
            raise KvverifyError(f"cannot plant {plant}")
        self.now = plant
        self.switched.append(plant)
        return "http://server"

    def withdraw(self) -> int | None:
        self.switch("")
        return None


class Run(SelfTestLive):
    """Commands answer from a table of (command, fault) -> verdict; what is not in it passes."""

    table: dict[tuple[str, str], Verdict]

    def command(self, name: str, url: str, timeout_s: float) -> tuple[Verdict, str, int, float]:
        assert isinstance(self.target, Target)
        return self.table.get((name, self.target.now), Verdict.PASS), "why", 5, 0.5


def _events(table: dict[tuple[str, str], Verdict], target: Target | None = None, **options: object) -> list[Event]:
    run = Run(target or Target(), 1, **options)  # type: ignore[arg-type]
    run.table = table
    events: list[Event] = [RunStarted(command="selftest", version="0", seed=1, options={})]
    run.run(events.append)
    return [*events, RunFinished(seconds=1.0)]


ALL = {
    ("tier-diff", "F1"): Verdict.FAIL,
    ("isolation", "F1"): Verdict.FAIL,
    ("tier-diff", "F2"): Verdict.INCONCLUSIVE,
}


def test_everything_seen_is_a_pass_and_the_server_is_left_clean() -> None:
    """Each fault through each command that must see it, the declared one too."""
    target = Target()
    events = _events(ALL, target)
    rows = [(e.fault, e.kernel, e.outcome) for e in events if isinstance(e, FaultPlanted)]
    assert rows == [
        ("F1", "tier-diff", "killed"),
        ("F1", "isolation", "killed"),
        ("F2", "tier-diff", "killed"),
        ("F3", "tier-diff", "declared"),
    ]
    assert verdict_of(events) is Verdict.PASS
    assert target.now == ""


@pytest.mark.parametrize("key", list(ALL))
def test_one_survivor_is_a_fail(key: tuple[str, str]) -> None:
    """Also where the other command sees the fault."""
    table = {k: v for k, v in ALL.items() if k != key}
    assert verdict_of(_events(table)) is Verdict.FAIL


def test_without_a_clean_control_nothing_is_planted() -> None:
    """A command that fails on a good server would kill everything."""
    events = _events(ALL | {("isolation", ""): Verdict.INCONCLUSIVE})
    assert not any(isinstance(e, FaultPlanted) for e in events)
    assert verdict_of(events) is Verdict.ERROR


def test_a_fault_that_cannot_be_switched_is_an_error() -> None:
    """And what was seen before stays in the log."""
    events = _events(ALL, Target(broken="F2"))
    assert [e.fault for e in events if isinstance(e, FaultPlanted)] == ["F1", "F1"]
    assert any(isinstance(e, ProblemMet) and "cannot plant F2" in e.problem for e in events)
    assert verdict_of(events) is Verdict.ERROR


def test_chosen_faults_and_those_of_an_earlier_run() -> None:
    """By id or name; what was done is not done again."""
    rows = [e.fault for e in _events(ALL, faults=["quiet"]) if isinstance(e, FaultPlanted)]
    assert rows == ["F2"]
    events = _events(ALL, done=frozenset({("F1", "tier-diff"), ("F2", "tier-diff")}))
    assert [(e.fault, e.kernel) for e in events if isinstance(e, FaultPlanted)] == [
        ("F1", "isolation"),
        ("F3", "tier-diff"),
    ]
    with pytest.raises(UsageError, match="unknown fault 'F9'"):
        _events(ALL, faults=["F9"])


def test_every_fault_of_the_connector_must_be_seen() -> None:
    """All of them change bytes, so that none may be less than a FAIL."""
    plants = VllmTarget("http://localhost:1").plants
    assert len(plants) == 6
    assert all(p.seen_by == ("tier-diff",) and p.verdict == "FAIL" for p in plants)
