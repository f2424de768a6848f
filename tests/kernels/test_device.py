"""What is said of a GPU, with a torch that pretends to have one: none of this machine's own is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvverify.report.words import gpu_line

TORCH = """
from types import SimpleNamespace
__version__ = "2.11.0"
class version: cuda = {cuda!r}; hip = {hip!r}
class _C: _cuda_getDriverVersion = staticmethod(lambda: {driver})
class cuda:
    current_device = staticmethod(lambda: 1)
    device_count = staticmethod(lambda: 2)
    get_device_name = staticmethod(lambda: {name!r})
    get_device_properties = staticmethod(lambda device: SimpleNamespace(
        major=9, minor=0, total_memory=(1 + device) << 30, gcnArchName="gfx950:sramecc+:xnack-"))
"""


def facts(folder: Path, **values: Any) -> dict[str, Any]:
    (folder / "torch.py").write_text(TORCH.format(**values))
    code = "import json; from kvverify.kernels.device import gpu_facts; print(json.dumps(gpu_facts()))"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(child.stdout)
    found.pop("driver", None)  # the kernel driver's, where this machine has one
    return found


@pytest.mark.parametrize(
    ("values", "architecture", "runtime", "line"),
    [
        (
            {"name": "NVIDIA H200", "cuda": "13.0", "hip": None, "driver": 13010},
            "sm_90",
            "CUDA 13.1",
            "NVIDIA H200, sm_90, 2.00 GiB, 2 visible, torch 2.11.0 for CUDA 13.0, driver of CUDA 13.1",
        ),
        (
            {"name": "AMD Instinct MI355X", "cuda": None, "hip": "7.0.1", "driver": 70152802},
            "gfx950:sramecc+:xnack-",
            "HIP 7.1",
            "AMD Instinct MI355X, gfx950:sramecc+:xnack-, 2.00 GiB, 2 visible, torch 2.11.0 for ROCm 7.0.1, driver of HIP 7.1",
        ),
    ],
)
def test_the_facts_of_a_gpu_of_either_vendor(
    tmp_path: Path, values: dict[str, Any], architecture: str, runtime: str, line: str
) -> None:
    found = facts(tmp_path, **values)
    assert (found["architecture"], found["runtime"], found["count"]) == (architecture, runtime, 2)
    assert ("torch_version_cuda" in found, "torch_version_hip" in found) == (bool(values["cuda"]), bool(values["hip"]))
    assert gpu_line(found) == line
