"""The benchmark can miss its bars, and says n/a where it did not measure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import baselines
from bench.checks import check_rate, oracle_of
from bench.run import PARTS, Measure, row

numbers = st.floats(0.01, 1e6)


@given(value=numbers, bar=numbers)
def test_a_bar_is_met_on_its_own_side_only(value: float, bar: float) -> None:
    assert Measure("rate", value, "x", bar).ok is (value >= bar)
    assert Measure("time", value, "s", bar, at_least=False).ok is (value <= bar)
    assert ("MISSED" in row(Measure("rate", value, "x", bar))) is (value < bar)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    measure = Measure("check / fio", None, "x", bar=0.8, note="fio is not installed")
    assert measure.ok is None
    assert "n/a" in row(measure)
    assert row(measure).endswith("fio is not installed")


def test_without_fio_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with baselines.fio_file(1 << 20) as answer:
        assert answer == "fio is not installed (Debian: apt-get install fio)"


def test_fio_notices_a_flipped_byte_as_the_check_does() -> None:
    with baselines.fio_file(4 << 20) as path:
        if isinstance(path, str):
            pytest.skip(path)
        assert baselines.fio_mmap_rate(path, 4 << 20) > 0
        damaged = bytearray(Path(path).read_bytes())
        damaged[1_000_000] ^= 1
        Path(path).write_bytes(damaged)
        with pytest.raises(subprocess.CalledProcessError):
            baselines.fio_mmap_rate(path, 4 << 20)


def test_memcmp_refuses_to_rate_buffers_that_differ() -> None:
    left, right = baselines.memcmp_pair(1 << 20)
    assert baselines.memcmp_rate(left, right) > 0
    right[-1] ^= 1
    with pytest.raises(RuntimeError, match="the buffers differ"):
        baselines.memcmp_rate(left, right)


def test_the_check_that_is_rated_must_be_clean() -> None:
    oracle = oracle_of(8)
    assert check_rate(oracle) > 0
    oracle.arena.buffer[100] ^= 1
    with pytest.raises(RuntimeError, match="a clean arena has 1 wrong bytes"):
        check_rate(oracle)


@pytest.mark.parametrize("flip", [False, True])
def test_a_peak_holds_the_arena_and_what_it_is_compared_with(flip: bool) -> None:
    # in a process of its own: a peak never falls
    from bench import commands

    words = ["flip"] if flip else []
    ended = subprocess.run(
        commands.python("-m", "bench.checks", "64", *words),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    # arena and shadow, less what of a small arena finds room in memory that the warm-up has given back
    assert 1.7 < float(ended.stdout.split(":")[1].strip(" }\n")) < 3.5


def test_every_part_is_named_in_the_usage() -> None:
    import bench.run

    assert all(part in (bench.run.__doc__ or "") for part in PARTS)
