from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.cli import main as edge
from kvverify.cli.kernels import table
from kvverify.errors import ContractError, UsageError
from kvverify.kernels.probe import KernelProbe, device_problem, probe, probe_all
from kvverify.kernels.registry import names

MINE = """
print("libraries print what they like")
class Mine:
    name = "mine"
    def supports(self, layout): return True
    def prepare(self, arena): ...
    def store(self, block_ids, host_slots): ...
    def load(self, host_slots, block_ids): ...
    def wait(self): ...
    def close(self): ...
    def provenance(self): return {"library": "mine", "version": "1", "path": "the fallback", "files": {"mine.py": "ab" * 32}}
"""


def plugin(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder / 'mine.py'}:Mine"


def test_a_kernel_is_asked_in_a_child(tmp_path: Path) -> None:
    found = probe(plugin(tmp_path, MINE))
    assert found == KernelProbe(
        "mine", True, "", {"library": "mine", "version": "1", "path": "the fallback", "files": {"mine.py": "ab" * 32}}
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "loading it killed the process (signal 11)"),
        ("import kvverify_no_such_library", "mine.py:Mine cannot run here: No module named 'kvverify_no_such_library'"),
        ("import os\nos._exit(7)", "loading it ended the process with code 7"),
    ],
)
def test_what_cannot_run_here_has_a_reason(tmp_path: Path, text: str, reason: str) -> None:
    found = probe(plugin(tmp_path, text))
    assert not found.available
    assert found.reason == reason


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def f(:\n", "fails when loaded: SyntaxError: invalid syntax (mine.py line 1)"),
        ("x = 1\n1 / 0\n", "fails when loaded: ZeroDivisionError: division by zero (mine.py line 2)"),
        ("class Mine:\n    name = 'x'\n", "Mine has no supports, prepare, store, load, wait, close; a copy kernel has"),
    ],
)
def test_what_is_no_kernel_breaks_the_contract(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ContractError) as caught:
        probe(plugin(tmp_path, text))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_attribute_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no attribute 'Yours'"):
        probe(plugin(tmp_path, MINE).replace(":Mine", ":Yours"))


def test_every_built_in_is_listed_with_a_path_or_a_reason(torch: ModuleType) -> None:
    found = {p.name: p for p in probe_all()}
    assert set(found) >= {"torch", "lmcache", "lmcache-block", "vllm-triton"}
    assert found["torch"].available
    for p in found.values():
        assert p.reason if not p.available else p.provenance["path"]


def test_the_command_lists_path_and_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["kernels", "--kernel", plugin(tmp_path, MINE), "--device", "cpu", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine  cpu   runs here: mine 1; the fallback"
    assert lines[1] == "        abababababab  mine.py"
    [document] = json.loads(lines[-1])["kernels"]
    assert document["provenance"]["path"] == "the fallback"
    assert (document["name"], document["available"], document["device"]) == ("mine", True, "cpu")


@pytest.mark.parametrize(("others", "code"), [([], 2), (["torch"], 3)])
def test_a_kernel_that_was_asked_for_and_cannot_run_is_no_success(
    tmp_path: Path, torch: ModuleType, capsys: pytest.CaptureFixture[str], others: list[str], code: int
) -> None:
    missing = plugin(tmp_path, "import kvverify_no_such_library")
    specs = [word for spec in [missing, *others] for word in ("--kernel", spec)]
    assert edge.run(["kernels", *specs]) == code
    assert "does not run here: " in capsys.readouterr().out


def test_a_kernel_that_runs_on_one_of_the_devices_is_a_success(
    torch: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edge.run(["kernels", "--kernel", "torch"]) == 0
    devices = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("torch")]
    assert devices == ["cpu", "cuda"]


def test_a_kernel_of_the_gpu_is_not_looked_for_on_the_cpu(
    torch: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edge.run(["kernels", "--kernel", "memcpy-async", "--device", "cpu"]) == 2
    assert (
        capsys.readouterr().err == "kvverify: kernel 'memcpy-async' copies from and to cuda only; add --device cuda\n"
    )


def test_without_a_gpu_every_gpu_kernel_says_so_and_no_library_is_loaded(
    torch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is visible")
    for name in ("vllm", "lmcache"):
        (tmp_path / f"{name}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe_all("cuda")
    assert [p.name for p in found] == names("cuda")
    for p in [*found, probe("vllm-swap-blocks", "cuda"), probe("lmcache", "cuda")]:
        assert not p.available
        assert p.device == "cuda"
        assert p.reason.startswith(f"torch {torch.__version__} is built ")
        assert "install a CUDA or ROCm build of torch" in p.reason or "check the driver" in p.reason


FAKE_TORCH = """
__version__ = "9.9"
class version: cuda = "13.0"; hip = None
class cuda:
    is_available = staticmethod(lambda: True)
    get_device_name = staticmethod(lambda: "an old GPU")
def ones(*size, device):
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device\\nmore lines")
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (FAKE_TORCH, "torch 9.9 is built for CUDA 13.0 and cannot compute on an old GPU: CUDA error: no kernel image"),
        (FAKE_TORCH.replace("True", "False"), "torch 9.9 is built for CUDA 13.0 and sees no GPU; check the driver"),
        ("raise OSError('libamdhip64.so.7: cannot open')", "torch cannot be imported (libamdhip64.so.7: cannot open)"),
    ],
)
def test_a_torch_of_the_wrong_build_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = device_problem("cuda")
    assert said.startswith(reason)
    assert "\n" not in said
    assert "install" in said or "check the driver" in said


def test_the_gpu_heads_the_table() -> None:
    gpu = {"name": "A GPU", "count": 2, "torch": "2.11.0", "torch_version_hip": "7.1"}
    on_gpu = KernelProbe("mine", True, "", {"library": "l", "version": "1", "path": "p", "gpu": gpu}, "cuda")
    assert table([KernelProbe("mine", False, "no"), on_gpu]) == [
        "GPU: A GPU, 2 visible, torch 2.11.0 for ROCm 7.1",
        "mine  cpu   does not run here: no",
        "mine  cuda  runs here: l 1; p",
    ]


def test_an_unknown_kernel_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["kernels", "--kernel", "lmcash"]) == 2
    assert capsys.readouterr().err.startswith("kvverify: unknown kernel 'lmcash': did you mean 'lmcache'")
