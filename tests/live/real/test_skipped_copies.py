"""A real LMCache server that is patched to skip its copies, and counts them all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvverify.events import GateEvaluated, Verdict
from tests.live.real.servers import CHUNK, lmcache, vllm
from tests.live.real.verifying import BRIEF, assert_bitwise, kvverify

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def skipping_stack(
    runs: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, Path]]:
    """vLLM with an LMCache server that does the copies itself, and does none while the third value, a file, exists."""
    skipped = tmp_path_factory.mktemp("skipped") / "copies"
    patch = {"PYTHONPATH": str(HERE / "skip_copies"), "KVVERIFY_SKIPPED": str(skipped)}
    with lmcache(runs / "lmcache-skipping.log", l2=None, **patch) as (port, http):
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
        extra |= {"lmcache.mp.mp_transfer_mode": "lmcache_driven"}
        connector = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": extra}
        with vllm(model, runs / "vllm-lmcache-skipping.log", connector=connector) as url:
            yield url, http, skipped


def test_skipped_copies_never_pass_though_every_counter_is_right(
    skipping_stack: tuple[str, str, Path], runs: Path
) -> None:
    url, http, skipped = skipping_stack
    with_copies = kvverify(runs / "lmcache-copies", "tier-diff", url, "--lmcache-url", http, *BRIEF)
    assert_bitwise(with_copies, "dram")  # so what follows is not the fault of the server or of the patch
    skipped.touch()
    run = kvverify(runs / "lmcache-skipped", "tier-diff", url, "--lmcache-url", http, *BRIEF)
    assert skipped.read_text()
    assert run.verdict is Verdict.FAIL, run.printed
    gates = [g for g in run.all(GateEvaluated) if g.arm == "dram"]
    assert [g.satisfied for g in gates] == [True]
    assert gates[0].counted["witness"]["lmcache_chunks_loaded"] == gates[0].expected["lower_hits"] // CHUNK
