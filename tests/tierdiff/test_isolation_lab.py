"""The isolation test and the doctor against the lab, over a real socket: clean is PASS, and each fault comes out as it must."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import pytest

pytest.importorskip("torch")

from kvverify.events import (
    ConfigurationChecked,
    EngineDescribed,
    Event,
    GateEvaluated,
    IsolationMeasured,
    RequestAnswered,
    RunFinished,
    RunStarted,
    SessionChecked,
    Verdict,
)
from kvverify.lab.serving import Options, running
from kvverify.live.control import Control, ServerProblem
from kvverify.tierdiff import isolation as tierdiff_isolation
from kvverify.tierdiff.connect import Connection
from kvverify.tierdiff.doctor_run import doctor
from kvverify.tierdiff.isolation_run import IsolationPlan, isolation
from kvverify.tierdiff.sessions import Found, Session
from kvverify.verdicts import verdict_of

pytestmark = pytest.mark.usefixtures("torch")


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    """One lab; each test plants its fault."""
    with running() as url:
        yield url


def _plant(url: str, name: str) -> None:
    async def ask() -> None:
        async with Control(url) as control:
            assert (await control.post_json("/lab/plant", {"plant": name}))["plant"] == (name or "none")

    asyncio.run(ask())


def _isolation(url: str, sessions: int = 4, rounds: int = 1, beside: int = 8) -> list[Event]:
    plan = IsolationPlan(url=url, sessions=sessions, rounds=rounds, timeout_s=120.0, beside=beside)
    events: list[Event] = [RunStarted(command="isolation", version="0", seed=7, options=plan.to_log())]
    isolation(plan, 7, events.append)
    return [*events, RunFinished(seconds=1.0)]


def test_a_clean_lab_passes_and_says_what_it_excludes(lab: str) -> None:
    """Every session right and proved, salts and the adapter checked, too."""
    _plant(lab, "")
    events = _isolation(lab)
    assert verdict_of(events) is Verdict.PASS
    checked = [e for e in events if isinstance(e, SessionChecked)]
    assert all(e.right and e.qualified and not e.foreign for e in checked)
    names = {e.session.rstrip("0123456789").strip() for e in checked}
    assert {"session", "salt b", "salt c, after a flush", "base model", "adapter lab-tiny-adapter"} <= names
    assert any(name.startswith("early token") for name in names)
    said = next(e for e in events if isinstance(e, IsolationMeasured))
    assert said.foreign == 0
    assert said.right == said.qualified > 8
    assert 0 < said.excluded_rate < 1
    new = [e for e in events if isinstance(e, RequestAnswered) and e.arm.endswith("-new")]
    assert said.new_prompts == len(new) >= 2
    assert {e.cached_tokens for e in new} == {0}
    assert {e.arm for e in new} == {"sessions-new", "early-token-new"}


def test_sessions_that_a_weak_model_answers_wrongly_are_replaced(lab: str) -> None:
    """Of more candidates than sessions those count that are right from HBM twice; the names stay those of the places."""
    _plant(lab, "")
    calls = 0

    def sometimes(text: str, session: Session, others: Sequence[Session]) -> Found:
        nonlocal calls
        calls += 1
        # the first four candidates: two are wrong at once, and one more the second time
        weak = {"session 00", "session 02"} | ({"session 03"} if calls > 4 else set())
        return Found(right=calls > 16 or session.name not in weak, foreign=())

    with patch.object(tierdiff_isolation, "examine", sometimes):
        events = _isolation(lab)
    checked = [e for e in events if isinstance(e, SessionChecked) and e.session.startswith("session ")]
    assert sorted(e.session for e in checked) == [f"session {n:02d}" for n in range(4)]
    assert all(e.qualified for e in checked)
    hbm = [e for e in events if isinstance(e, GateEvaluated) and e.arm == "sessions-hbm"]
    assert len(hbm) == 4  # two waves of candidates, twice each


@pytest.mark.parametrize(
    ("plant", "verdict"),
    [("F21", Verdict.FAIL), ("F19", Verdict.INCONCLUSIVE), ("flush-lies", Verdict.INCONCLUSIVE)],
)
def test_a_faulty_lab_never_passes(lab: str, plant: str, verdict: Verdict) -> None:
    """A load that copies nothing, hashes that never agree, a flush that lies; `selftest --live lab` runs all plants."""
    _plant(lab, plant)
    assert verdict_of(_isolation(lab, 3)) is verdict


@pytest.mark.parametrize(("beside", "verdict"), [(8, Verdict.FAIL), (0, Verdict.PASS)])
def test_vllm_46460_a_prefix_ignored_beside_a_new_prompt_needs_a_new_prompt_to_be_seen(
    lab: str, beside: int, verdict: Verdict
) -> None:
    """vllm-project/vllm#46460: the counters are in order, only answers tell; without new prompts there is nothing to see."""
    _plant(lab, "lost-prefix")
    events = _isolation(lab, beside=beside)
    assert verdict_of(events) is verdict
    assert all(e.satisfied for e in events if isinstance(e, GateEvaluated))


def test_new_prompts_that_do_not_fit_beside_the_sessions_are_left_out_with_a_note() -> None:
    """And the sessions are checked all the same."""
    with running(Options(hbm_blocks=32)) as url:
        events = _isolation(url)
    assert verdict_of(events) is Verdict.PASS
    note = [e for e in events if isinstance(e, EngineDescribed)][-1].notes[-1]
    assert note.startswith("new prompts beside the sessions left out: 4 sessions and one of them take ")
    assert note.endswith(" HBM holds 1024")
    assert [e.new_prompts for e in events if isinstance(e, IsolationMeasured)] == [0]


def test_foreign_content_is_traced(lab: str) -> None:
    """Across salts only the counters show it, and the report names whose blocks were hit."""
    _plant(lab, "F17")
    events = _isolation(lab, 2)
    assert verdict_of(events) is Verdict.FAIL
    leaks = [e for e in events if isinstance(e, SessionChecked) and e.foreign]
    assert ("salt b", "salt a") in {(e.session, e.foreign) for e in leaks}


def test_the_doctor_finds_a_lab_in_order_and_one_that_never_hits(lab: str) -> None:
    """Two identical prompts, the second must hit."""

    def outcomes(plant: str) -> dict[str, str]:
        _plant(lab, plant)
        events: list[Event] = []
        doctor(Connection(url=lab, shared=True), 3, events.append)
        return {e.check: e.outcome for e in events if isinstance(e, ConfigurationChecked)}

    assert set(outcomes("").values()) == {"ok"}
    faults = {check for check, outcome in outcomes("F19").items() if outcome == "fault"}
    assert faults == {"prefix caching", "lower tier"}


def test_the_lab_refuses_a_fault_that_it_does_not_know(lab: str) -> None:
    """And goes on with the one it has."""
    _plant(lab, "F19")
    with pytest.raises(ServerProblem, match="unknown lab fault"):
        _plant(lab, "F99")
