"""Policy files: the shipped ones are valid, and what is wrong in one is named in one line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kvverify.errors import UsageError
from kvverify.evals_data import shipped
from kvverify.policy.load import load_policy
from kvverify.policy.model import ReleasePolicy, RolloutPolicy

HEAD = 'version = 1\nkind = "release"\ntitle = "T"\n'
ROLLOUT = 'version = 1\nkind = "rollout"\nphase = "canary"\ntitle = "T"\n'
CHECK = '[[check]]\ncommand = "roundtrip"\n'


def written(folder: Path, text: str) -> str:
    path = folder / "own.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", sorted(path.stem for path in shipped("policies").glob("*.toml")))
def test_every_shipped_policy_is_valid(name: str) -> None:
    loaded = load_policy(name)
    data = (shipped("policies") / f"{name}.toml").read_bytes()
    assert (loaded.name, loaded.sha256) == (name, hashlib.sha256(data).hexdigest())
    assert loaded.policy.version == 1


def test_release_holds_the_published_bar() -> None:
    policy = load_policy("release").policy
    assert isinstance(policy, ReleasePolicy)
    assert policy.isolation is not None
    assert (policy.isolation.answers, policy.isolation.published) == (480, "480 of 480")
    assert {margin.effect: margin.points for margin in policy.margin} == {"format": 1.0, "tier": 0.4}
    assert "roundtrip" in [check.command for check in policy.check]


@pytest.mark.parametrize("phase", ["shadow", "canary", "full"])
def test_rollouts_hold_the_three_reasons_to_roll_back(phase: str) -> None:
    policy = load_policy(phase).policy
    assert isinstance(policy, RolloutPolicy)
    assert policy.phase == phase
    assert [(x.measure, x.quantile, x.growth) for x in policy.latency] == [("itl", 0.95, 0.10)]
    assert policy.format_errors is not None
    assert policy.format_errors.points == 0.5
    assert policy.safety is not None
    assert policy.safety.regressions == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + CHECK + 'verdits = ["PASS"]\n', "unknown key check.0.verdits; did you mean 'verdicts'?"),
        (HEAD + CHECK + "[coverge]\nsequences = 1\n", "unknown key coverge; did you mean 'coverage'?"),
        (HEAD + CHECK + "[coverage]\nsequence = 1\n", "unknown key coverage.sequence; did you mean 'sequences'?"),
        (HEAD + '[[check]]\ncommand = "roundtrp"\n', "check.0.command: got 'roundtrp'; input should be 'roundtrip'"),
        (
            HEAD + '[[check]]\ncommand = "doctor"\nverdicts = ["FAIL"]\n',
            "check.0.verdicts.0: got 'FAIL'; input should be",
        ),
        (HEAD, "the policy: asks for nothing; a policy without a requirement would pass everything"),
        (ROLLOUT, "the policy: asks for nothing; a policy without a rule would let everything go"),
        (ROLLOUT.replace("canary", "canry") + "[safety]\n", "phase: got 'canry'"),
        (HEAD.replace("= 1", "= 2") + CHECK, "version 2; this kvverify reads version = 1"),
        (CHECK, "version None; this kvverify reads version = 1"),
        (HEAD.replace("release", "relase") + CHECK, "kind 'relase'; did you mean 'release'?"),
        (HEAD.replace('title = "T"\n', "") + CHECK, "title is missing"),
        (HEAD + CHECK + "[[known_finding]]\n", "known_finding.0.why is missing"),
        (
            HEAD + CHECK + '[[known_finding]]\nwhy = "w"\nexpires = 2027-01-31\n',
            "known_finding.0: names no finding; give kernel, fingerprint, fault, library or configuration",
        ),
        (
            HEAD + CHECK + '[[known_finding]]\nwhy = "w"\nkernel = "k"\nformat = "f"\nexpires = 2027-01-31\n',
            "known_finding.0: format belongs to library",
        ),
        (
            HEAD + '[[margin]]\neffect = "format"\npoints = -1\n',
            "margin.0.points: got -1; input should be greater than 0",
        ),
        ("version = ", "no TOML ("),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_policy(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "own.toml: " in str(caught.value)


def test_an_unknown_name_names_the_shipped_ones() -> None:
    with pytest.raises(
        UsageError, match="relase: no such file and nothing shipped of this name in policies; did you mean 'release'"
    ):
        load_policy("relase")
