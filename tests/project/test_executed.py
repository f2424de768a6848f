"""A CI job that did nothing must not be green."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.events import BatchFinished, Event, KernelProbed, RunStarted
from kvverify.report.executed import executed_tests, kernel_devices, nothing_done, skipped_tests


def started(device: str | None) -> RunStarted:
    return RunStarted(command="roundtrip", version="0", seed=1, options={"device": device})


def batch(kernel: str, sequences: int = 1) -> BatchFinished:
    return BatchFinished(
        batch=0,
        kernel=kernel,
        layout="l",
        order="LBNHC",
        sequences=sequences,
        steps={},
        formats={},
        lengths={},
        compared_bytes=1,
        moved_bytes=1,
        seconds=0.1,
    )


def junit(folder: Path, tests: int, skipped: int) -> Path:
    path = folder / "junit.xml"
    path.write_text(f'<testsuites><testsuite name="pytest" tests="{tests}" skipped="{skipped}"/></testsuites>')
    return path


def test_a_run_with_sequences_and_tests_counts() -> None:
    assert nothing_done([started("cpu"), batch("torch")], 3, gpu=False) == []


def test_a_visible_gpu_that_no_kernel_used_does_not() -> None:
    reasons = nothing_done([started("cpu"), batch("torch")], 3, gpu=True)
    assert reasons == ["a GPU is visible and no kernel ran on it (ran: torch on cpu)"]


def test_one_kernel_on_the_gpu_is_enough() -> None:
    probed = KernelProbed(kernel="lmcache", available=True, provenance={"device": "cpu"})
    events: list[Event] = [started("cuda"), probed, batch("lmcache"), batch("torch")]
    assert kernel_devices(events) == {"lmcache": "cpu", "torch": "cuda"}
    assert nothing_done(events, 1, gpu=True) == []


def test_the_name_of_the_gpu_is_no_other_device() -> None:
    probed = KernelProbed(kernel="memcpy-batch", available=True, provenance={"device": "AMD Instinct MI355X"})
    events: list[Event] = [started("cuda"), probed, batch("memcpy-batch")]
    assert kernel_devices(events) == {"memcpy-batch": "cuda"}
    assert nothing_done(events, 1, gpu=True) == []


def test_a_gpu_kernel_that_was_only_found_does_not_count() -> None:
    probed = KernelProbed(kernel="torch", available=True, provenance={"device": "cuda"})
    assert nothing_done([started("cuda"), probed, batch("torch", sequences=0)], 1, gpu=True) == [
        "no kernel executed a sequence"
    ]


def test_nothing_at_all_gives_both_reasons() -> None:
    assert nothing_done([], 0, gpu=False) == ["no kernel executed a sequence", "no test executed"]


@given(tests=st.integers(0, 50), skipped=st.integers(0, 50))
def test_skipped_tests_did_not_execute(tmp_path_factory: pytest.TempPathFactory, tests: int, skipped: int) -> None:
    path = junit(tmp_path_factory.mktemp("junit"), tests + skipped, skipped)
    assert executed_tests(path) == tests
    assert bool(nothing_done([started(None), batch("torch")], executed_tests(path), gpu=False)) is (tests == 0)


def test_a_missing_junit_file_means_no_test(tmp_path: Path) -> None:
    assert executed_tests(tmp_path / "none.xml") == 0


def test_a_damaged_junit_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text("<testsuites>")
    with pytest.raises(ValueError, match=r"junit\.xml: not a JUnit file"):
        executed_tests(path)


def test_the_count_agrees_with_a_real_pytest_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        def test_a(): pass
        @pytest.mark.skip(reason="no GPU")
        def test_b(): pass
        """
    )
    result = pytester.runpytest_subprocess("--junitxml=all.xml")
    result.assert_outcomes(passed=1, skipped=1)
    assert executed_tests(pytester.path / "all.xml") == 1


def test_skipped_tests_are_counted_apart(tmp_path: Path) -> None:
    assert skipped_tests(junit(tmp_path, 3, 2)) == 2
    assert skipped_tests(tmp_path / "missing.xml") == 0
