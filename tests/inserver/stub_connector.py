"""A connector of vLLM's shape that offloads to a dictionary, on the CPU: what the fault connector is put before in tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kvverify.inserver import kv_blocks
from kvverify.inserver.fault_connector import FaultsMixin


class Meta:
    """The connector's own metadata: which stored blocks go to which blocks."""

    def __init__(self, loads: list[tuple[list[int], list[int]]]) -> None:
        self.loads = loads


class DictConnector:
    """Keeps blocks by number; loads what update_state_after_alloc was told, in the same step or before it is scheduled."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._vllm_config, self._kv_cache_config = vllm_config, kv_cache_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self.asynchronous = bool(self._kv_transfer_config.kv_connector_extra_config.get("async", False))
        self.store: dict[int, list[torch.Tensor]] = {}
        self._loads: list[tuple[list[int], list[int]]] = []

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.views = [kv_blocks.by_block(t, self._kv_cache_config.num_blocks) for t in kv_caches.values()]

    def keep(self, block: int) -> None:
        """Offload a block."""
        self.store[block] = [view[block].clone() for view in self.views]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return request.tokens - num_computed_tokens, self.asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            count = num_external_tokens // 4
            self._loads.append((request.stored[-count:], blocks.get_block_ids()[0][-count:]))

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        loads, self._loads = self._loads, []
        return Meta(loads)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self.meta = connector_metadata

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for stored, blocks in self.meta.loads:
            for source, block in zip(stored, blocks, strict=True):
                for view, content in zip(self.views, self.store[source], strict=True):
                    view[block] = content


class FaultyDictConnector(FaultsMixin, DictConnector):
    """What the module makes of a registered connector."""


def configs(blocks: int, layers: list[str], **extra: Any) -> tuple[Any, Any]:
    """The two configurations a connector is made from: one layer group, blocks of 4 tokens."""
    spec = SimpleNamespace(block_size=4)
    kv_cache_config = SimpleNamespace(
        num_blocks=blocks, kv_cache_groups=[SimpleNamespace(layer_names=layers, kv_cache_spec=spec)]
    )
    vllm_config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    return vllm_config, kv_cache_config
