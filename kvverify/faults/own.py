"""Faults of our own, each more subtle than "the bytes are wrong".

Eight of them survived the first oracle, which had random contents, whole-memory comparison and four to six host slots:

    K02 minus-zero           no float32 minus zero among random words      contents hold special values
    K03 zeros-skipped        no cell of zeros among random words           contents hold stretches of zeros
    K04 host-int32           the host tier was small                       host rows lie 1 GiB apart beside sparse buffers
    K05 sorts-arguments      nobody looked at the lent lists               lists are compared after each call
    K06 reads-ids-late       lists were never used again                   lists are emptied after each call
    K07 turns-lent-views     memory was compared, not the tensors over it  shape, strides, address are compared
    K12 seventeenth-dropped  stores never named 17 slots                   large pools get 18 host slots
    K14 wipes-on-close       nothing was compared after close()            each session shape is closed and compared once

Planting F16 with LMCache showed that loads of a kernel with two blocks a slot never filled the pool; loads now do.

Not here, because it is no fault: a permutation that store and load apply alike. The order of bytes inside a slot is the
kernel's (plug-in contract, rule 4), and such a pair cancels out. Not here, because no comparison afterwards can see it: bytes
of a neighbour that are read and written back unchanged within one call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvverify.faults.fault import Traits
from kvverify.faults.planted import Planted, Unwritten, current, rows_of
from kvverify.layout.placement import Layer, Layout, Role

if TYPE_CHECKING:
    import torch

    from kvverify.kernels.contract import ArenaView, CopyKernel

Copy = Callable[[list[int], list[int]], None]
_INT32, _UINT32 = 1 << 31, 1 << 32
_LATE_S = 0.02


class ThroughFloat(Planted):
    """K01: 16-bit values pass through float32, which quiets NaN."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, then convert there and back."""
        copy(slots, blocks)
        self.settle()
        for layer in self.layers_of(group):
            if layer.element_bytes == 2:
                view, rows = self.view(layer), rows_of(layer, blocks)
                view[rows] = view[rows].float().to(view.dtype)


def has_halves(_traits: Traits, layout: Layout) -> str | None:
    """K01 needs 16-bit floats."""
    return None if any(x.element_bytes == 2 for x in layout.layers) else "no layer of 16-bit floats"


class MinusZero(Planted):
    """K02: float32 minus zero becomes zero, as after adding 0.0."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, then clear the sign of zeros."""
        import torch

        copy(slots, blocks)
        self.settle()
        for layer in self.layers_of(group):
            if layer.element == "float32":
                bits, rows = self.view(layer).view(torch.int32), rows_of(layer, blocks)
                loaded = bits[rows]
                bits[rows] = loaded.masked_fill_(loaded == -_INT32, 0)


def has_floats(_traits: Traits, layout: Layout) -> str | None:
    """K02 needs 32-bit floats."""
    return None if any(x.element == "float32" for x in layout.layers) else "no layer of 32-bit floats"


class ZerosSkipped(Planted):
    """K03: cells that are all zero are not written, as into fresh memory."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, then put back what lay under cells of zeros."""
        import torch

        layers = [(self.view(x).view(torch.uint8), rows_of(x, blocks)) for x in self.layers_of(group)]
        self.settle()
        before = [view[rows].clone() for view, rows in layers]
        self.settle()
        copy(slots, blocks)
        self.settle()
        for (view, rows), old in zip(layers, before, strict=True):
            loaded = view[rows]
            view[rows] = torch.where((loaded == 0).all(-1, keepdim=True), old, loaded)


class HostInt32(Planted):
    """K04: host slot times row stride in 32 bits."""

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Store; what belongs to far slots lands where the wrapped offset leads."""
        far = self._far(slots)
        self.settle()
        before = [right.clone() for right, _ in far]
        copy(blocks, slots)
        self.settle()
        for (right, wrong), old in zip(far, before, strict=True):
            wrong.copy_(right)
            right.copy_(old)

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load from where the wrapped offset leads."""
        far = self._far(sorted(set(slots)))
        self.settle()
        before = [right.clone() for right, _ in far]
        for right, wrong in far:
            right.copy_(wrong)
        copy(slots, blocks)
        self.settle()
        for (right, _), old in zip(far, before, strict=True):
            right.copy_(old)

    def _far(self, slots: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Rows whose offset does not fit, each with the bytes at its wrapped place."""
        if self.host is None:
            return []
        found = []
        for slot in slots:
            offset = slot * self.host.stride(0)
            shift = (offset + _INT32) % _UINT32 - _INT32 - offset
            if shift:
                start = self.host.storage_offset() + offset + shift
                found.append((self.host[slot], self.host.as_strided((self.host.shape[1],), (1,), start)))
        return found


def has_far_slots(traits: Traits, layout: Layout) -> str | None:
    """K04 needs host rows beyond 2^31 bytes: the third on beside sparse layouts, where slots are cheap enough to have so many."""
    small = layout.host_slot_bytes() * traits["blocks_per_slot"] <= 640 << 10
    return None if layout.usable_blocks is not None and small else "the host tier is smaller than 2 GiB"


class SortsItsArguments(Planted):
    """K05: sorts the caller's list of block ids after the copy."""

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], **named: int) -> None:
        """Load, then sort in place."""
        super().load(host_slots, block_ids, **named)
        _sort(block_ids)

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], **named: int) -> None:
        """Store, then sort in place."""
        super().store(block_ids, host_slots, **named)
        _sort(block_ids)


def _sort(ids: Any) -> None:
    ids.sort()


class ReadsIdsLate(Planted):
    """K06: a load keeps the caller's lists and reads them in wait()."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._issued: list[Callable[[], None]] = []

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], **named: int) -> None:
        """Remember the lists themselves."""

        def later() -> None:
            if len(block_ids):
                self.kernel.load(list(host_slots), list(block_ids), **named)

        self._issued.append(later)

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], **named: int) -> None:
        """Keep the order of calls."""
        self._flush()
        super().store(block_ids, host_slots, **named)

    def wait(self) -> None:
        """Do what was issued."""
        self._flush()
        super().wait()

    def _flush(self) -> None:
        issued, self._issued = self._issued, []
        for copy in issued:
            copy()


class TurnsLentViews(Planted):
    """K07: exchanges two dimensions of a lent view in place."""

    def prepare(self, arena: ArenaView) -> Any:
        """Prepare, then turn the engine's own tensor."""
        owned = super().prepare(arena)
        arena.layers[0].transpose_(-2, -3)
        return owned


class TakesWhatItReads(Planted):
    """K08: a load wipes the first 16 bytes of a slot that was stored since the last wait."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._fresh: set[int] = set()

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Store, and note that the slots are fresh."""
        copy(blocks, slots)
        self._fresh.update(slots)

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, and take it from the slot."""
        copy(slots, blocks)
        self.settle()
        if self.host is not None:
            for slot in self._fresh.intersection(slots):
                self.host[slot, :16] ^= 0xFF
        self._fresh.clear()


class LoadsTwice(Planted):
    """K09: the next store repeats the last load, as a retry that comes late."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._last: Callable[[], None] = _nothing

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, and remember it."""
        copy(slots, blocks)
        self._last = lambda: copy(slots, blocks)

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Store after a repeated load."""
        last, self._last = self._last, _nothing
        last()
        self.kernel.wait()
        copy(blocks, slots)


def _nothing() -> None:
    pass


class StaleCache(Planted):
    """K10: what a slot held when it was first loaded is kept, and a store does not tell the cache."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._kept: dict[int, torch.Tensor] = {}

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load from kept rows where there are any."""
        if self.host is None:
            copy(slots, blocks)
            return
        self.settle()
        true = {slot: self.host[slot].clone() for slot in slots}
        for slot, row in true.items():
            self.host[slot] = self._kept.setdefault(slot, row)
        copy(slots, blocks)
        self.settle()
        for slot, row in true.items():
            self.host[slot] = row


class DropsRepeated(Planted):
    """K11: of slots named twice in a load, only the first is read."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Leave out repeated slots."""
        per_slot = int(getattr(self.kernel, "blocks_per_slot", 1))
        first = [i for i, slot in enumerate(slots) if slots.index(slot) == i]
        copy([slots[i] for i in first], [b for i in first for b in blocks[i * per_slot : (i + 1) * per_slot]])


def has_two_whole_slots(traits: Traits, layout: Layout) -> str | None:
    """K11 needs a load that names one full slot twice, and its destinations are distinct."""
    fits = len(layout.blocks) >= 2 * traits["blocks_per_slot"]
    return None if fits else "too few blocks to load one slot into two places"


class SeventeenthDropped(Planted):
    """K12: a store of exactly 17 slots (a batch of 16 and one) forgets the last."""

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Leave the 17th out."""
        per_slot = int(getattr(self.kernel, "blocks_per_slot", 1))
        if len(slots) == 17:
            blocks, slots = blocks[: 16 * per_slot], slots[:16]
        copy(blocks, slots)


def has_seventeen(traits: Traits, layout: Layout) -> str | None:
    """K12 needs 17 blocks or more and slots that are cheap enough to have so many."""
    if traits["slow"]:
        return "slow kernels get fewer blocks a call"
    many = len(layout.blocks) >= 17 * traits["blocks_per_slot"]
    small = layout.host_slot_bytes() * traits["blocks_per_slot"] <= 64 << 10
    return None if many and small else "fewer than 17 small slots are in use"


class AlreadyResident(Planted):
    """K13: a block that got a slot once is taken to hold it still; only a store to the slot says otherwise."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._resident: set[tuple[int, int]] = set()

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Store, and forget who holds the slots."""
        self._resident = {(slot, block) for slot, block in self._resident if slot not in slots}
        copy(blocks, slots)

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Leave out what is taken to be there."""
        per_slot = int(getattr(self.kernel, "blocks_per_slot", 1))
        pairs = [(slot, tuple(blocks[i * per_slot : (i + 1) * per_slot])) for i, slot in enumerate(slots)]
        missing = [(slot, part) for slot, part in pairs if (slot, part[0]) not in self._resident]
        self._resident.update((slot, part[0]) for slot, part in pairs)
        if missing:
            copy([slot for slot, _ in missing], [block for _, part in missing for block in part])


class WipesOnClose(Planted):
    """K14: close() wipes the host memory it was lent."""

    def close(self) -> None:
        """Close, then wipe."""
        super().close()
        if self.host is not None:
            self.host.zero_()


class LateByThread(Planted):
    """K15: the last block of a load arrives by a thread that wait() does not join."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, take the last block back, and let a thread bring it."""
        last = [
            (self.bytes.field(layer, field), rows_of(layer, blocks[-1:]))
            for layer in self.layers_of(group)
            for field in layer.fields
            if field.role is not Role.PADDING
        ]
        self.settle()
        before = [part[rows].clone() for part, rows in last]
        self.settle()
        copy(slots, blocks)
        self.settle()
        right = [part[rows].clone() for part, rows in last]
        _write(last, before)
        self.settle()
        stream = self.arena.stream

        def late() -> None:
            time.sleep(_LATE_S)
            with current(stream):  # a thread begins with the default stream
                _write(last, right)

        threading.Thread(target=late, daemon=True).start()


def _write(parts: list[tuple[torch.Tensor, list[int]]], values: list[torch.Tensor]) -> None:
    for (part, rows), value in zip(parts, values, strict=True):
        part[rows] = value


def one_cell(kernel: CopyKernel) -> CopyKernel:
    """K16: one head of one token in one layer is left out."""

    def parts(planted: Planted, layer: Layer) -> Iterator[torch.Tensor]:
        if layer is planted.arena.layout.layers[-1]:
            field = next(f for f in layer.fields if f.role is not Role.PADDING)
            yield planted.bytes.field(layer, field)[:, field.heads - 1 :, field.tokens // 2 : field.tokens // 2 + 1, :]

    return Unwritten(kernel, parts)


class ZeroPointBits(Planted):
    """K17: the low 4 mantissa bits of int4 scales, where the zero point lives, are lost."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, then clear the bits."""
        copy(slots, blocks)
        self.settle()
        for layer in self.layers_of(group):
            for field in layer.fields if layer.kv_format == "int4_per_token_head" else ():
                if field.role is Role.SCALE:
                    low = self.bytes.field(layer, field)[..., 0]
                    rows = rows_of(layer, blocks)
                    low[rows] = low[rows] & 0xF0


def has_zero_points(_traits: Traits, layout: Layout) -> str | None:
    """K17 needs int4 scales."""
    return None if "int4_per_token_head" in layout.formats else "no int4 scales with a zero point inside"


class KeysAndValues(Planted):
    """K18: K and V are exchanged on a load where both are equally wide."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, then exchange."""
        copy(slots, blocks)
        self.settle()
        for layer in self.layers_of(group):
            pair = [f for f in layer.fields if f.name in ("k", "v")]
            if len(pair) == 2 and pair[0].length == pair[1].length:
                (k, v), rows = [self.bytes.field(layer, f) for f in pair], rows_of(layer, blocks)
                k[rows], v[rows] = v[rows], k[rows]


def has_equal_halves(_traits: Traits, layout: Layout) -> str | None:
    """K18 needs K and V of one width."""
    for layer in layout.layers:
        widths = [f.length for f in layer.fields if f.name in ("k", "v")]
        if len(widths) == 2 and widths[0] == widths[1]:
            return None
    return "no layer with K and V of one width"


class LastBlock(Planted):
    """K19: the last block of the pool is mistaken for the one before it."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load into the neighbour, unless it is a destination itself."""
        last, before = self.arena.layout.blocks[-1], self.arena.layout.blocks[-2]
        if before not in blocks:
            blocks = [before if b == last else b for b in blocks]
        copy(slots, blocks)


class FirstGroup(Planted):
    """K20: blocks of the other groups are copied as if they were the first's."""

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], **named: int) -> None:
        """Store the first group's layers."""
        super().store(block_ids, host_slots, **{**named, "group": 0})

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], **named: int) -> None:
        """Load into the first group's layers."""
        super().load(host_slots, block_ids, **{**named, "group": 0})


def has_groups(traits: Traits, layout: Layout) -> str | None:
    """K20 needs several block tables."""
    if len(layout.groups) < 2 or not traits["groups"]:
        return "one block table"
    places = [
        {(x.offset, x.block_stride, x.page_bytes) for x in layout.layers if x.group == g.index}
        for g in layout.groups[:2]
    ]
    return None if places[0] != places[1] else "both groups lie over the same bytes"


class PaddedPart(Planted):
    """K21: a chunk that is not full is filled up with its last block id, whose block then gets a stale sub-block."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load what the slot holds, then the sub-block after it into the last block."""
        copy(slots, blocks)
        per_slot = int(getattr(self.kernel, "blocks_per_slot", 1))
        part: Any = self.kernel
        held = len(blocks) % per_slot
        if held and len(slots) * per_slot - len(blocks) == per_slot - held:
            self.kernel.wait()
            part.load_part(slots[-1], held, blocks[-1:], **({"group": group} if group else {}))


def has_partial_slots(traits: Traits, _layout: Layout) -> str | None:
    """K21 needs slots that may be partly filled."""
    return None if traits["partial_slots"] and traits["load_part"] else "the kernel fills every slot"
