"""One changed line in the installed kernels is found, and the wrong field is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conformance.altered import CHANGES
from tests.roundtrip.test_altered_libraries import overlay

NAMED = {
    "key nibbles swapped": "field k:",
    "value nibbles swapped": "field v:",
    "norm a little longer": "field k_norm:",
    "norm behind the value": "field k_norm:",
    "scale divided by 16": " in v_scale",
    "scale of 3 bits divided by 8": " in v_scale",
    "value truncated": "field v:",
    "highest index never used": "field k:",
    "one step of the search left out": "field k:",
    "scale one step up": "field v_scale:",
    "minimum one step up": "field v_min:",
    "minimum of 3 bits one step up": "field v_min:",
    "sign of the rotated key": "field k:",
    "table of 3 bits": "field k:",
    "table of twice the head size": "field k:",
    "norm correction left out": "decoded K:",
    "decoded norm forgotten": "decoded K:",
    "block table ignored": "decoded K:",
}
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tried(vllm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("altered")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.conformance.altered", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["change"]: line["checks"] for line in lines}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_line_is_caught_by_name(tried: dict[str, list[dict[str, Any]]], change: str) -> None:
    headlines = [check["headline"] for check in tried[change] if check["different_bytes"]]
    assert headlines, "nobody noticed"
    assert any(NAMED[change] in headline for headline in headlines), headlines


@pytest.mark.parametrize("preset", ["turboquant_4bit_nc", "turboquant_3bit_nc"])
def test_the_kernels_as_installed_pass(tried: dict[str, list[dict[str, Any]]], preset: str) -> None:
    checks = tried[f"none, {preset}"]
    assert [check["what"] for check in checks] == ["store fp16", "store bf16", "dequant"]
    assert all(check["compared_bytes"] > 1000 for check in checks)
    assert [check["headline"] for check in checks] == ["", "", ""]


def verify(out: Path, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "kvverify",
        "codecs",
        "verify",
        "--head-size",
        "64",
        "--seed",
        "5",
        "--out",
        str(out),
    ]
    python_path = os.pathsep.join(p for p in (str(path), os.environ.get("PYTHONPATH", "")) if p)
    environment = {**os.environ, "PYTHONPATH": python_path}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, env=environment)


def test_the_command_fails_on_a_changed_line_of_the_installed_store_kernel(vllm: ModuleType, tmp_path: Path) -> None:
    _, old, new, preset = CHANGES["norm a little longer"]
    file = "v1/attention/ops/triton_turboquant_store.py"
    path = overlay(tmp_path / "path", "vllm", file, old, new)
    run = verify(tmp_path / "run", path, "--library", "vllm", "--preset", preset)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "field k_norm" in run.stdout
    assert "field k_norm" in (tmp_path / "run" / "report.html").read_text()


def test_the_command_passes_on_the_kernels_as_installed(vllm: ModuleType, lmcache: ModuleType, tmp_path: Path) -> None:
    run = verify(
        tmp_path / "run",
        tmp_path,
        "--library",
        "vllm",
        "--library",
        "lmcache",
        "--preset",
        "turboquant_3bit_nc",
        "--json",
    )
    document = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == document["exit_code"] == 0, run.stdout + run.stderr
    operations = {(c["library"], c["format"], c["what"]) for c in document["comparisons"]}
    assert ("vllm", "turboquant_3bit_nc", "store fp16") in operations
    assert ("lmcache", "turboquant_3bit_nc", "through StorageManager and disk") in operations
    assert ("lmcache", "asym_k16_v8", "serialise") in operations
    assert document["compared_bytes"] == sum(c["compared_bytes"] for c in document["comparisons"]) > 100_000


def test_a_changed_line_of_lmcache_is_found(lmcache: ModuleType, vllm: ModuleType, tmp_path: Path) -> None:
    file = "v1/distributed/serde/turboquant/turboquant.py"
    path = overlay(tmp_path / "path", "lmcache", file, "_TQ_LAYER_SEED_STRIDE = 1337", "_TQ_LAYER_SEED_STRIDE = 1338")
    run = verify(tmp_path / "run", path, "--library", "lmcache", "--preset", "turboquant_4bit_nc")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "layer 2, field k:" in run.stdout
