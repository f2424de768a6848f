"""``kvverify diff``: what got better, worse, newly covered or lost, and when that cannot be said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.cli.main import run
from kvverify.errors import UsageError
from kvverify.events import Event, Verdict
from kvverify.report.changes import Changes, Side, compare, moved, read_side
from kvverify.report.signoff.checks import Check
from tests.policy.recorded import comparison, difference
from tests.policy.test_release import campaign, selftest
from tests.run_folder import write

RESULTS = Path(__file__).parents[2] / "results"
KINDS = ("worse", "undecided", "lost", "better", "new")


def changes(folder: Path, old: list[Event], new: list[Event]) -> Changes:
    return compare(read_side([write(folder / "old", old)]), read_side([write(folder / "new", new)]))


def counts(found: Changes) -> tuple[int, ...]:
    return tuple(len(getattr(found, kind)) for kind in KINDS)


@pytest.mark.parametrize(
    ("old", "new", "expected", "verdict"),
    [
        (campaign(), [*campaign()[:-1], *campaign()[-1:]], (0, 0, 0, 0, 0), Verdict.PASS),
        (campaign(), campaign(failures=("x",)), (2, 0, 0, 0, 0), Verdict.FAIL),
        (campaign(failures=("x",)), campaign(), (0, 0, 0, 2, 0), Verdict.PASS),
        (campaign("a"), campaign("b"), (0, 0, 2, 0, 2), Verdict.INCONCLUSIVE),
        (campaign("a"), campaign("b", failures=("x",)), (2, 0, 2, 0, 0), Verdict.FAIL),
        (selftest("killed"), selftest("killed", "killed"), (0, 0, 0, 0, 1), Verdict.PASS),
        (selftest("killed"), selftest("survived"), (1, 0, 0, 0, 0), Verdict.FAIL),
        ([], campaign(), (0, 0, 0, 0, 2), Verdict.INCONCLUSIVE),
        ([], [], (0, 0, 0, 0, 0), Verdict.INCONCLUSIVE),
    ],
)
def test_checks_by_verdict(
    tmp_path: Path, old: list[Event], new: list[Event], expected: tuple[int, ...], verdict: Verdict
) -> None:
    write(tmp_path / "old", old)
    write(tmp_path / "new", new)
    found = compare(read_side([tmp_path / "old"]), read_side([tmp_path / "new"]))
    assert (counts(found), found.verdict) == (expected, verdict)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, (0, 0, 0, 0, 0)),
        (-0.004, (0, 0, 0, 0, 0)),
        (-0.008, (0, 1, 0, 0, 0)),
        (-0.03, (1, 0, 0, 0, 0)),
        (0.02, (0, 0, 0, 1, 0)),
    ],
)
def test_a_score_is_worse_where_its_interval_lies_below_the_old_one(
    tmp_path: Path, value: float, expected: tuple[int, ...]
) -> None:
    found = changes(tmp_path, comparison(difference()), comparison(difference(value=value)))
    assert counts(found) == expected


def test_committed_runs() -> None:
    old, new = (read_side([RESULTS / "live-cpu" / name]) for name in ("lmcache", "lmcache-skipped"))
    assert counts(compare(old, new)) == (4, 2, 0, 0, 0)
    assert counts(compare(new, old)) == (0, 0, 0, 6, 0)


def test_a_sign_off_says_the_same_as_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = RESULTS / "roundtrip-cpu", RESULTS / "h200" / "roundtrip"
    run(["report", str(old), str(RESULTS / "selftest"), "--out", str(tmp_path / "old")])
    run(["report", str(new), "--policy", "copy-kernels", "--out", str(tmp_path / "new")])
    stated = compare(read_side([tmp_path / "old"]), read_side([tmp_path / "new" / "signoff.json"]))
    made = compare(read_side([old, RESULTS / "selftest"]), read_side([new]))
    assert counts(stated) == counts(made)
    assert stated.worse == made.worse
    assert moved(read_side([tmp_path / "old"]), read_side([tmp_path / "new"])) == moved(
        read_side([old, RESULTS / "selftest"]), read_side([new])
    )
    capsys.readouterr()
    assert run(["diff", str(tmp_path / "old"), str(tmp_path / "new"), "--json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert document["old"]["stated"] is True
    assert len(document["worse"]) == len(made.worse)
    assert sum("those that the sign-off states" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("new", "code", "words"),
    [
        (campaign(sequences=600), 0, "PASS: nothing is worse: 0 worse"),
        (campaign(failures=("x",)), 1, "FAIL: something is worse: 2 worse"),
        (campaign("other"), 3, "INCONCLUSIVE: cannot be decided: 0 worse, 0 undecided, 2 lost"),
    ],
)
def test_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], new: list[Event], code: int, words: str
) -> None:
    paths = [str(write(tmp_path / "old", campaign())), str(write(tmp_path / "new", new))]
    assert run(["diff", *paths]) == code
    assert words in capsys.readouterr().out


def test_what_was_tested_is_told_where_it_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """A new kernel brings many checks: they are a line; what is lost stands one by one."""
    assert run(["diff", str(RESULTS / "selftest"), str(RESULTS / "h200" / "selftest")]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert "  library of lmcache: lmcache 0.5.6 -> lmcache 0.5.3" in lines
    assert "  planted fault K04 host-int32 with torch: PASS (killed) -> –" in lines
    assert "  41 planted faults with memcpy-async: – -> 41 PASS" in lines
    assert "  planted fault F12 store-no-wait with torch: – -> PASS (killed)" in lines
    assert len(lines) < 25
    assert run(["diff", str(RESULTS / "selftest"), str(RESULTS / "h200" / "selftest"), "--json"]) == 3
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(document["new"]) > 200
    assert {"what": "library of torch", "old": "torch 2.13.0+cpu", "new": "torch 2.11.0"} in document["tested"]


def test_a_first_failure_is_told_from_one_that_passed_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        write(tmp_path / "old", campaign("a")),
        write(tmp_path / "new", [*campaign("a"), *campaign("b", failures=("x",))]),
    ]
    assert run(["diff", *map(str, paths)]) == 1
    out = capsys.readouterr().out
    assert "Fails, and was not checked before:\n  bytes of bf16 with b: – -> FAIL" in out
    assert "Worse:" not in out


def test_more_runs_of_a_side(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / name, events)) for name, events in (("a", campaign("a")), ("b", campaign("b")))]
    both = str(write(tmp_path / "both", [*campaign("a"), *campaign("b")]))
    assert run(["diff", both, paths[0]]) == 3
    assert run(["diff", both, paths[0], "--new-run", paths[1]]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "format None, version None; expected a signoff.json of version 1"),
        ('{"format": "kvverify sign-off", "version": 9}', "version 9"),
        ('{"format": "kvverify sign-off", "version": 1}', "a check is damaged ('checks')"),
        ('{"format": "kvverify sign-off", "version": 1, "checks": {"a": {"verdict": "GOOD"}}}', "a check is damaged"),
    ],
)
def test_what_is_no_sign_off_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_side([tmp_path / "x.json"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sign_off_beside_other_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="stands for a whole release; give it alone"):
        read_side([tmp_path / "x.json", write(tmp_path / "a", campaign())])


CHECKS = st.dictionaries(st.sampled_from("abcdef"), st.builds(Check, st.sampled_from(list(Verdict))), max_size=6)


@given(CHECKS, CHECKS)
def test_every_check_is_counted_once_and_only_equal_sides_are_the_same(
    old: dict[str, Check], new: dict[str, Check]
) -> None:
    found = compare(Side("old", old, False), Side("new", new, False))
    assert sum(counts(found)) + found.same == len({*old, *new})
    assert (found.same == len({*old, *new})) == (old == new)
    passed = {name for name, check in old.items() if check.verdict is Verdict.PASS}
    fails = {name for name, check in new.items() if check.verdict in (Verdict.FAIL, Verdict.ERROR)}
    assert passed & fails <= {change.name for change in found.worse}
