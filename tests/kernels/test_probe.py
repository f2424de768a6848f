from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.cli import main as edge
from kvverify.errors import ContractError, UsageError
from kvverify.kernels.probe import KernelProbe, probe, probe_all

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
    assert edge.run(["kernels", "--kernel", plugin(tmp_path, MINE), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine  runs here: mine 1; the fallback"
    assert lines[1] == "        abababababab  mine.py"
    assert json.loads(lines[-1])["kernels"][0]["provenance"]["path"] == "the fallback"


def test_a_kernel_that_was_asked_for_and_cannot_run_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edge.run(["kernels", "--kernel", plugin(tmp_path, "import kvverify_no_such_library")]) == 3
    assert "does not run here: " in capsys.readouterr().out


def test_an_unknown_kernel_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert edge.run(["kernels", "--kernel", "lmcash"]) == 2
    assert capsys.readouterr().err.startswith("kvverify: unknown kernel 'lmcash': did you mean 'lmcache'")
