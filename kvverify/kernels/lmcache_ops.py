"""What adapters over LMCache's pointer-taking ops have in common: registration, pointer tables, host rows, completion."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvverify.kernels.lmcache_chunks import ChunkKernel
from kvverify.kernels.lmcache_context import MOST_OBJECTS
from kvverify.kernels.lmcache_groups import Registration, register, unsupported

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.kernels.lmcache_library import Library
    from kvverify.layout.placement import Layout

_ALIGNMENT = 16  # bytes; the widest unit that the ops copy


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel group of LMCache: its layers' addresses, and where its object lies in a host slot."""

    kernel_group: Any  # KernelGroupInfo
    pointers: torch.Tensor  # int64 [layer], where the layers are
    offset: int  # bytes from the start of the slot
    shape: tuple[int, int, int, int]  # of its object: K/V, layer, token, head * content

    @property
    def size_bytes(self) -> int:
        """Bytes of its object."""
        kv, layers, tokens, hidden = self.shape
        return int(kv * layers * tokens * hidden * self.kernel_group.dtype.itemsize)


class OpKernel(ChunkKernel):
    """A kernel that calls one op a kernel group, on ``arena.stream`` where there is one.

    Host slot: the objects of the group's kernel groups, ``[kv, layer, token, head * content]`` each, from multiples of 16.
    ``entry`` names the op in provenance.
    """

    entry: str

    def __init__(self, lib: Library) -> None:
        super().__init__(lib)
        self.host = torch.empty(0, dtype=torch.uint8)
        self._parts: dict[int, list[Part]] = {}  # engine group -> its kernel groups
        self._stream: Any = None
        self._finished: Any = None  # event after the last copy; None on the CPU, where a call returns when it is done

    @abstractmethod
    def limits(self, registration: Registration) -> str | None:
        """Return what the op documents that it cannot copy of this registration, or None."""

    @abstractmethod
    def copy(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        """Enqueue the copy between blocks ``ids`` and ``slots``, but for the first ``skip_blocks`` blocks."""

    def supports(self, layout: Layout) -> bool | str:
        """True, or LMCache's own reason."""
        return unsupported(self.lib, layout, self.blocks_per_slot, self.limits) or True

    def prepare(self, arena: ArenaView) -> None:
        """Register the layers and put their addresses where the op reads them."""
        registration = register(self.lib, arena.layout, arena.layers, self.blocks_per_slot)
        self.host, self._stream = arena.host, arena.stream
        self._parts = {}
        for kernel_group in registration.manager.kernel_groups:
            parts = self._parts.setdefault(kernel_group.engine_group_idx, [])
            end = parts[-1].offset + parts[-1].size_bytes if parts else 0
            parts.append(self._part(registration, kernel_group, -(-end // _ALIGNMENT) * _ALIGNMENT))

    def _part(self, registration: Registration, kernel_group: Any, offset: int) -> Part:
        desc = kernel_group.shape_desc
        addresses = self.lib.connector.get_group_data_ptrs(
            registration.tensors, kernel_group.engine_kv_format, kernel_group.layer_indices
        )
        shape = (desc.kv_size, kernel_group.num_layers, self.blocks_per_slot * desc.bs, kernel_group.hidden_dim_size)
        pointers = torch.tensor(addresses, dtype=torch.int64, device=registration.tensors[0].device)
        return Part(kernel_group, pointers, offset, shape)

    def parts(self, group: int) -> list[Part]:
        """The kernel groups of a layer group."""
        return self._parts[group]

    def beside(self, part: Part, numbers: Sequence[int]) -> torch.Tensor:
        """Int64 numbers where the layers are; on a GPU copied in order with the stream and without waiting for it."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        return tensor if self._stream is None else tensor.pin_memory().to(part.pointers.device, non_blocking=True)

    def transfer(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        """Enqueue the copy, and the event that ``wait`` waits for."""
        try:
            self.copy(ids, slots, group, skip_blocks, way)
        finally:  # what was enqueued before an error must be waited for too
            if self._stream is not None:
                self._finished = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._finished.record(self._stream)

    def wait(self) -> None:
        """Block the host until the last copy is done, and with it all before."""
        if self._finished is not None:
            self._finished.synchronize()

    def done(self) -> bool:
        """Has the event passed that follows the last copy?"""
        return self._finished is None or bool(self._finished.query())

    def close(self) -> None:
        """Wait, then drop the arena's tensors."""
        self.wait()
        self._parts = {}
        self.host = torch.empty(0, dtype=torch.uint8)
        self._stream = self._finished = None

    def provenance(self) -> dict[str, Any]:
        """Library, version, digests and the path that runs here."""
        return self.lib.provenance(self.entry)


class BlockOp(OpKernel):
    """``multi_layer_block_kv_transfer`` for each kernel group, with pointers straight into the host rows."""

    def copy(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        """One call a kernel group for every four objects."""
        k = self.blocks_per_slot
        for start in range(0, len(slots), MOST_OBJECTS):
            batch = slots[start : start + MOST_OBJECTS]
            for part in self.parts(group):
                desc = part.kernel_group.shape_desc
                self.lib.ops.multi_layer_block_kv_transfer(
                    part.pointers,
                    [self.host[slot].data_ptr() + part.offset for slot in batch],
                    self.beside(part, ids[start * k : (start + MOST_OBJECTS) * k]),
                    part.pointers.device,
                    way,
                    desc,
                    k * desc.bs,
                    part.kernel_group.engine_kv_format,
                    skip_blocks,
                )
