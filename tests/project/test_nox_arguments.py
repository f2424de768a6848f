"""What `nox -s roundtrip` tells the campaign and the property tests, with and without a GPU."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.events import Event, RunStarted
from kvverify.kernels.registry import names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    """The module noxfile.py."""
    pytest.importorskip("nox")
    spec = importlib.util.spec_from_file_location("kvverify_noxfile", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value(arguments: list[str], option: str) -> list[str]:
    return [after for word, after in itertools.pairwise(arguments) if word == option]


def test_on_a_gpu_host_all_kernels_of_the_gpu_are_tried(noxfile: ModuleType) -> None:
    run, arguments = noxfile.campaign(["--budget", "60s"], gpu=True)
    assert value(arguments, "--device") == ["cuda"]
    assert value(arguments, "--out") == [run]
    assert arguments[-2:] == ["--budget", "60s"]
    assert "--kernel" not in arguments


@pytest.mark.parametrize("own", [["--device", "cpu"], ["--device=cpu"]])
def test_the_callers_device_counts(noxfile: ModuleType, own: list[str]) -> None:
    _, arguments = noxfile.campaign(own, gpu=True)
    assert [word for word in arguments if word.startswith("--device")] == own[:1]


def test_elsewhere_the_kernels_of_the_cpu_must_run(noxfile: ModuleType) -> None:
    _, arguments = noxfile.campaign([], gpu=False)
    assert value(arguments, "--kernel") == ["torch", "lmcache", "vllm-triton"]
    assert "--device" not in arguments


@pytest.mark.parametrize("named", [True, False])
def test_the_property_tests_of_a_resumed_run_meet_its_kernels_and_device(noxfile: ModuleType, named: bool) -> None:
    run, arguments = noxfile.campaign(["--resume", "runs/here"], gpu=True)
    assert (run, arguments) == ("runs/here", ["--resume", "runs/here"])
    options = {"device": "cuda", "named": named, "kernels": ["torch", "lmcache"]}
    events: list[Event] = [RunStarted(command="roundtrip", version="0", seed=1, options=options)]
    told = noxfile.fuzz_arguments(arguments, events)
    assert value(told, "--device") == ["cuda"]
    assert value(told, "--kernel") == (["torch", "lmcache"] if named else [])


def test_a_new_run_hands_its_own_arguments_on(noxfile: ModuleType) -> None:
    _, arguments = noxfile.campaign(["--kernel=torch"], gpu=True)
    assert noxfile.fuzz_arguments(arguments, []) == arguments


@pytest.mark.parametrize(
    ("own", "handed", "kernels"),
    [
        ([], [], names("cpu")),
        ([], ["--device", "cuda"], names("cuda")),
        ([], ["--device=cuda", "--budget", "9s"], names("cuda")),
        (["--device", "cuda"], [], names("cuda")),
        (["--device", "cpu"], ["--device", "cuda"], names("cpu")),
        ([], ["--device", "cuda", "--kernel=lmcache", "--kernel", "torch"], ["lmcache", "torch"]),
    ],
)
def test_the_property_tests_meet_the_kernels_of_the_device(
    own: list[str], handed: list[str], kernels: list[str]
) -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "fuzz", "--collect-only", "-q", *own],
        cwd=ROOT,
        env={**os.environ, "KVVERIFY_FUZZ_ARGUMENTS": json.dumps(handed)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.findall(r"test_a_block_that_was_loaded_can_be_stored_again\[(.+)\]", collected.stdout)
    assert found == kernels
