"""The fault connector in front of a connector on the CPU: each fault does what it says, and only when it is switched on."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from kvverify.inserver.kv_faults import FAULTS, Load, Planter
from tests.inserver.kv_pools import BLOCKS, blocks_first, packed_odd
from tests.inserver.stub_connector import FaultyDictConnector, configs

pytestmark = pytest.mark.usefixtures("torch")


class Server:
    """The two sides of one connector and the steps that vLLM makes them take; metadata goes through pickle, as it does there."""

    def __init__(self, **extra: Any) -> None:
        self.caches = {"a": blocks_first(0), "b": blocks_first(1), "c": packed_odd(2)}
        made = configs(BLOCKS, list(self.caches), **extra)
        self.scheduler = FaultyDictConnector(made[0], "scheduler", made[1])
        self.worker = FaultyDictConnector(made[0], "worker", made[1])
        self.worker.register_kv_caches(self.caches)
        for block in (1, 2, 3):
            self.worker.keep(block)

    def block(self, number: int) -> list[torch.Tensor]:
        return [view[number].clone() for view in self.worker.views]

    def step(self, scheduled: list[str]) -> None:
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(scheduled, 1), finished_req_ids=set())
        meta = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))  # noqa: S301
        self.worker.bind_connector_metadata(meta)
        self.worker.start_load_kv(None)

    def load(self, name: str, stored: list[int], blocks: list[int], held: int = 0) -> None:
        """Load ``stored`` into ``blocks``, ``held`` tokens of which HBM already has, up to the forward pass."""
        request = SimpleNamespace(request_id=name, tokens=4 * len(stored), stored=stored)
        found, asynchronous = self.scheduler.get_num_new_matched_tokens(request, held)
        ids = SimpleNamespace(get_block_ids=lambda: (blocks,))
        self.scheduler.update_state_after_alloc(request, ids, found)
        if asynchronous:
            self.step([])
            self.scheduler.update_state_after_alloc(request, ids, 0)
        self.step([name])


def _equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[bool]:
    return [bool(torch.equal(a, b)) for a, b in zip(left, right, strict=True)]


@pytest.fixture(params=[False, True], ids=["within the step", "before the step"])
def server(request: pytest.FixtureRequest) -> Server:
    """Connectors that load in the step that reads the blocks, and those that load before it."""
    return Server(**{"async": request.param})


def test_without_a_fault_all_is_as_the_connector_does_it(server: Server) -> None:
    """Bytes arrive, and nothing else changes."""
    expected = [server.block(b) for b in (1, 2, 3)]
    others = server.block(6)
    server.load("r", [1, 2, 3], [4, 5, 3])
    assert [_equal(server.block(b), e) for b, e in zip((4, 5, 3), expected, strict=True)] == [[True] * 3] * 3
    assert all(_equal(server.block(6), others))


def test_wrong_block(server: Server) -> None:
    """The last block holds the first one's bytes, in every layer."""
    first, second = server.block(1), server.block(2)
    server.worker.kvverify_switch("wrong-block")
    server.load("r", [1, 2, 3], [4, 5, 6])
    assert all(_equal(server.block(4), first))
    assert all(_equal(server.block(5), second))
    assert all(_equal(server.block(6), first))


def test_dropped_load(server: Server) -> None:
    """The destination keeps what it held."""
    before = server.block(5)
    server.worker.kvverify_switch("dropped-load")
    server.load("r", [1, 2], [4, 5])
    assert all(_equal(server.block(5), before))


def test_stale_block(server: Server) -> None:
    """The second request gets the first one's last block; the first is served well."""
    expected = server.block(2)
    server.worker.kvverify_switch("stale-block")
    server.load("first", [1, 2], [4, 5])
    assert all(_equal(server.block(5), expected))
    server.load("second", [3], [6])
    assert all(_equal(server.block(6), expected))
    assert server.worker.kvverify_switch("")["planted"] == 1


def test_swapped_layers(server: Server) -> None:
    """Two layers of one shape exchange what was loaded; the packed one keeps its own."""
    expected = server.block(2)
    server.worker.kvverify_switch("swapped-layers")
    server.load("r", [1, 2], [4, 5])
    found = server.block(5)
    assert _equal(found, [expected[1], expected[0], expected[2]]) == [True, True, True]


def test_flipped_byte(server: Server) -> None:
    """One byte of one layer of one block, the one with sign and exponent."""
    expected = [server.block(1), server.block(2)]
    server.worker.kvverify_switch("flipped-byte")
    server.load("r", [1, 2], [4, 5])
    assert all(_equal(server.block(4), expected[0]))
    changed = [
        (a.reshape(-1).view(torch.uint8) != b.reshape(-1).view(torch.uint8)).nonzero().flatten().tolist()
        for a, b in zip(server.block(5), expected[1], strict=True)
    ]
    assert changed == [[], [1], []]


def test_late_load(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass finds the old bytes; later steps find the new ones."""
    clock = [100.0]
    monkeypatch.setattr("kvverify.inserver.kv_faults.time.monotonic", lambda: clock[0])
    before, expected = server.block(5), server.block(2)
    server.worker.kvverify_switch("late-load")
    server.load("r", [1, 2], [4, 5])
    assert all(_equal(server.block(5), before))
    clock[0] += 0.4
    server.step(["r"])
    assert all(_equal(server.block(5), before))
    clock[0] += 0.2
    server.step(["r"])
    assert all(_equal(server.block(5), expected))


def test_blocks_that_hbm_held_are_left_alone(server: Server) -> None:
    """Of a partial hit only the loaded blocks can be hurt."""
    held = server.block(4)
    server.worker.kvverify_switch("wrong-block")
    server.load("r", [1, 2, 3], [4, 5, 6], held=4)
    assert all(_equal(server.block(4), held))
    assert all(_equal(server.block(6), server.block(5)))


def test_the_null_block_is_never_touched(server: Server) -> None:
    """A window group's block table has fillers."""
    null = server.block(0)
    server.worker.kvverify_switch("flipped-byte")
    server.worker._kvverify_ready().after(Load("r", ((),), True))
    server.load("r", [1], [0])
    assert server.worker.kvverify_switch("")["planted"] == 0
    assert _equal(server.block(0), server.block(1)) == [True] * 3
    assert not all(_equal(null, server.block(0)))


def test_a_load_that_never_reached_a_forward_pass_plants_nothing(server: Server) -> None:
    """A request that was aborted is forgotten on both sides."""
    request = SimpleNamespace(request_id="gone", tokens=8, stored=[1, 2])
    found, _ = server.scheduler.get_num_new_matched_tokens(request, 0)
    server.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: ([4, 5],)), found)
    output = SimpleNamespace(num_scheduled_tokens={}, finished_req_ids={"gone"})
    server.scheduler.build_connector_meta(output)
    server.worker.kvverify_switch("wrong-block")
    server.step(["gone"])
    assert server.worker.kvverify_switch("")["planted"] == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_switched_off_again_nothing_is_planted(server: Server, fault: str) -> None:
    """A control run after the faults must be clean."""
    expected = server.block(2)
    server.worker.kvverify_switch(fault)
    server.load("r", [1, 2], [4, 5])
    server.load("s", [1, 2], [4, 5])
    assert server.worker.kvverify_switch("") == {
        "plant": "",
        "was": fault,
        "planted": 1 if fault == "stale-block" else 2,
    }
    server.load("t", [1, 2], [4, 5])
    assert all(_equal(server.block(5), expected))


def test_an_unknown_fault_is_refused_and_changes_nothing(server: Server) -> None:
    """The message names the valid ones."""
    server.worker.kvverify_switch("wrong-block")
    with pytest.raises(ValueError, match="no fault 'wrong'; valid: wrong-block"):
        server.worker.kvverify_switch("wrong")
    assert server.worker.kvverify_switch("")["was"] == "wrong-block"


def test_faults_are_chosen_by_the_configuration_and_by_a_file(tmp_path: Any) -> None:
    """Without dev endpoints a file switches."""
    first = Server(**{"kvverify.plant": "wrong-block"})
    expected = first.block(1)
    first.load("r", [1, 2], [4, 5])
    assert all(_equal(first.block(5), expected))

    file = tmp_path / "plant"
    second = Server(**{"kvverify.plant_file": str(file)})
    second.load("r", [1, 2], [4, 5])
    assert not all(_equal(second.block(5), expected))
    file.write_text("wrong-block\n")
    second.load("s", [1, 2], [4, 5])
    assert all(_equal(second.block(5), expected))


def test_metadata_that_takes_no_attribute_is_refused() -> None:
    """Better no server than one whose faults are not there."""
    server = Server()
    server.scheduler.__class__ = type("Other", (FaultyDictConnector,), {})
    base = FaultyDictConnector.__mro__[2]
    original = base.build_connector_meta  # type: ignore[attr-defined]
    try:
        base.build_connector_meta = lambda self, output: ()  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="tuple takes no attribute"):
            server.step([])
    finally:
        base.build_connector_meta = original  # type: ignore[attr-defined]


def test_every_fault_is_described_and_has_a_plant() -> None:
    """A name without an effect would survive everything."""
    views = [torch.zeros(4, 3, dtype=torch.int16), torch.ones(4, 3, dtype=torch.int16)]
    for fault in FAULTS:
        planter = Planter([views])
        planter.switch(fault)
        for request in ("r", "s"):
            load = Load(request, ((1, 2),), True)
            planter.before(load)
            planter.after(load)
        assert planter.planted, fault


def test_real_connectors_keep_what_vllm_asks_of_their_class() -> None:
    """HMA support and the constructor's third argument decide whether vLLM starts at all."""
    pytest.importorskip("transformers", reason="vLLM's connectors import transformers")
    pytest.importorskip("vllm")
    from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma
    from vllm.utils.func_utils import supports_kw

    from kvverify.inserver import fault_connector

    made = fault_connector.FaultyOffloadingConnector
    assert made is fault_connector.FaultyOffloadingConnector
    assert supports_hma(made)
    assert supports_kw(made, "kv_cache_config")
    assert not made.__abstractmethods__
    with pytest.raises(AttributeError, match="FaultyNothing"):
        _ = fault_connector.FaultyNothing
