"""ExampleConnector as the tier below a real vLLM, and its files altered between the passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvverify.events import ReplayCompared, Verdict
from tests.live.real.servers import vllm
from tests.live.real.verifying import BRIEF, assert_bitwise, kvverify

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def disk_stack(runs: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM with ExampleConnector."""
    folder = tmp_path_factory.mktemp("tier")
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    with vllm(model, runs / "vllm-example.log", connector=connector) as url:
        yield url


def test_the_example_connectors_disk_is_bitwise_equal(disk_stack: str, runs: Path) -> None:
    assert_bitwise(kvverify(runs / "example", "tier-diff", disk_stack, *BRIEF), "disk")


@pytest.mark.parametrize("altered", ["Int4", "SignByte", "ExponentByte"])
def test_altered_files_are_a_failure(disk_stack: str, runs: Path, altered: str) -> None:
    engine = f"{HERE / 'altered.py'}:{altered}"
    run = kvverify(runs / f"example-{altered}", "tier-diff", disk_stack, "--engine", engine, *BRIEF)
    assert run.verdict is Verdict.FAIL, run.printed
    disk = [c for c in run.all(ReplayCompared) if c.arm == "disk"]
    assert [(c.what, c.different, c.refused) for c in disk] == [("answers", True, "")]
