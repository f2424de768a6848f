"""A loaded policy applied to runs: which of the two kinds it is decides how."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvverify.events import Event
from kvverify.policy.known import excuse_for, without_known
from kvverify.policy.load import LoadedPolicy
from kvverify.policy.model import ReleasePolicy
from kvverify.policy.release import judge_release
from kvverify.policy.rollout import judge_rollout
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.requirement import Judgement


class Judged(NamedTuple):
    """The answer of a policy, the runs without what it excuses, and why it excuses an event (empty: it does not)."""

    judgement: Judgement
    runs: Sequence[Run]
    known: Callable[[Run, Event], str]


def judge_runs(loaded: LoadedPolicy, runs: Sequence[Run], today: dt.date) -> Judged:
    """Return what the policy says to the runs on the day ``today``, which decides whether a known finding has expired.

    Raises:
        UsageError: a rollout policy, and the runs are not two arms.
    """
    policy = loaded.policy
    if not isinstance(policy, ReleasePolicy):
        return Judged(judge_rollout(loaded, policy, runs), runs, lambda _run, _event: "")
    findings = policy.known_finding
    judgement = judge_release(loaded, policy, runs, today)
    return Judged(
        judgement, without_known(runs, findings, today), lambda _run, event: excuse_for(findings, event, today)
    )
