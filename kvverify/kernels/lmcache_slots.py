"""Adapter over LMCache's slot-wise op, which copies token by token as its in-process connectors ask it to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvverify.kernels.lmcache_cuda_library import load
from kvverify.kernels.lmcache_groups import Registration
from kvverify.kernels.lmcache_ops import OpKernel, Part

# the formats that multi_layer_kv_transfer dispatches (mem_kernels.cu); it raises on others
_FORMATS = frozenset(
    {
        "NB_NL_TWO_BS_NH_HS",
        "NL_X_TWO_NB_BS_NH_HS",
        "NL_X_NB_TWO_BS_NH_HS",
        "NL_X_NB_BS_HS",
        "NL_X_NBBS_ONE_HS",
        "NL_X_TWO_NB_NH_BS_HS",
        "NL_X_NB_TWO_NH_BS_HS",
        "NL_X_NB_NH_BS_TWO_HS",
        "NL_X_NB_BS_NH_TWO_HS",
        "NL_X_NB_NH_BS_CS",
        "NL_X_NB_BS_NH_CS",
        "NL_X_NB_BSV_BSS",
    }
)


class LMCacheSlotOp(OpKernel):
    """``multi_layer_kv_transfer`` for each slot and kernel group; a token's slot is block * tokens a block + token.

    Called as LMCache's connector of one object a chunk does, but with the format, block size and head size of every kernel
    group's own. ``head_size`` is that of K, as the op documents it: half of a fused K/V cell. It reads and writes the pinned
    host rows from the GPU, on torch's current stream, which is ``arena.stream``.
    """

    name = "lmcache-slots"
    entry = "multi_layer_kv_transfer over pinned rows"
    ordered = True

    def __init__(self) -> None:
        super().__init__(load())

    def limits(self, registration: Registration) -> str | None:
        """The formats it dispatches; blocks without gaps where it has no argument for them."""
        for group in registration.manager.kernel_groups:
            desc = group.shape_desc
            if group.engine_kv_format.name not in _FORMATS:
                return f"format {group.engine_kv_format.name}: multi_layer_kv_transfer does not dispatch it"
            tight = desc.bs * desc.nh * desc.hs
            if desc.block_stride_elems not in (0, tight) and not self.lib.slot_op_takes_block_stride:
                return (
                    f"a block stride of {desc.block_stride_elems} elements for {tight} of content: multi_layer_kv_transfer of "
                    f"LMCache {self.lib.version} has no argument for it"
                )
        return None

    def copy(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        """One call a slot and kernel group."""
        k = self.blocks_per_slot
        for part in self.parts(group):
            tokens = part.kernel_group.shape_desc.bs
            mapping = self.beside(part, [block * tokens + token for block in ids for token in range(tokens)])
            for i, slot in enumerate(slots):
                of_slot = mapping[i * k * tokens : (i + 1) * k * tokens]
                self._copy_slot(part, self.host[slot], of_slot, skip_blocks * tokens, way)

    def _copy_slot(self, part: Part, row: torch.Tensor, mapping: torch.Tensor, skip_tokens: int, way: Any) -> None:
        group, desc = part.kernel_group, part.kernel_group.shape_desc
        stride = {"block_stride_elems": desc.block_stride_elems} if self.lib.slot_op_takes_block_stride else {}
        self.lib.ops.multi_layer_kv_transfer(
            row[part.offset : part.offset + part.size_bytes].view(group.dtype).view(part.shape),
            part.pointers,
            mapping,
            part.pointers.device,
            desc.nb * desc.bs,
            way,
            group.engine_kv_format,
            block_size=desc.bs,
            head_size=_head_size(group),
            skip_prefix_n_tokens=skip_tokens,
            **stride,
        )


def _head_size(group: Any) -> int:
    """Elements of one head of K: formats that hold K and V in one cell describe the whole cell."""
    fused = group.engine_kv_format.name.endswith(("_CS", "_TWO_HS"))
    return int(group.shape_desc.hs) // 2 if fused else int(group.shape_desc.hs)
