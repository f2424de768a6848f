"""The commands as a user of a GPU meets them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.cli.main import run
from kvverify.kernels.registry import names


def test_every_kernel_of_the_gpu_is_listed_with_its_path_or_a_reason(
    torch: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "--device", "cuda", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"GPU: {torch.cuda.get_device_name()}, ")
    found = {k["name"]: k for k in json.loads(lines[-1])["kernels"]}
    assert list(found) == names("cuda")
    assert found["torch"]["available"]
    assert found["memcpy-async"]["available"]
    for kernel in found.values():
        assert kernel["device"] == "cuda"
        assert kernel["provenance"].get("path") or kernel["reason"]
        assert "\n" not in kernel["reason"]


def test_a_run_says_on_which_gpu_it_was(torch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--kernel", "memcpy-async", "--device", "cuda", "--examples", "8", "--out", str(tmp_path / "run")]
    assert run(["roundtrip", *words]) == 0
    name = torch.cuda.get_device_name()
    assert f"GPU: {name}, " in capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["gpu"]["name"] == name
    assert record["gpu"]["torch"] == torch.__version__
    for report in ("report.html", "report.md"):
        text = (tmp_path / "run" / report).read_text()
        assert name in text
        assert "cuda" in text


def test_the_only_kernel_asked_for_that_cannot_run_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing.py"
    path.write_text("import kvverify_no_such_library")
    words = ["--kernel", f"{path}:Kernel", "--device", "cuda", "--out", str(tmp_path / "run")]
    assert run(["roundtrip", *words]) == 2
    assert "No module named 'kvverify_no_such_library'" in capsys.readouterr().out
