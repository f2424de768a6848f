"""What every planted fault is made of: a kernel around a kernel, and the bytes that it can reach.

A fault alters what a real kernel is given (views, ids), when it is called (order), or what it leaves behind (results). The last
way is the most general: put bytes back that a faulty copy would not have written, and the memory looks as that copy leaves it.

On a GPU a kernel's call returns before its copy is done, and the engine's own work may be unfinished when the call comes. A fault
that looks at bytes or alters them does so between two calls of :meth:`Planted.settle`; its own work goes to the current stream,
which is ``arena.stream``, and to host memory by the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kvverify.kernels.contract import ArenaView, CopyKernel
    from kvverify.layout.placement import Field, Layer, Layout


@dataclass(slots=True)
class SeenArena:
    """An arena as a faulty kernel sees it; start from :meth:`of` and replace what the fault misreads."""

    layout: Layout
    layers: list[torch.Tensor]
    group_layers: list[list[torch.Tensor]]
    host: torch.Tensor
    stream: Any
    rank: int
    world_size: int

    @classmethod
    def of(cls, arena: ArenaView) -> SeenArena:
        """Return ``arena`` as it is."""
        groups = [list(group) for group in arena.group_layers]
        return cls(arena.layout, list(arena.layers), groups, arena.host, arena.stream, arena.rank, arena.world_size)

    def with_layers(self, layers: list[torch.Tensor], layout: Layout | None = None) -> SeenArena:
        """Return it with other views and, where given, another layout."""
        known = layout or self.layout
        groups = [[layers[i] for i in known.group_layers(g.index)] for g in known.groups]
        return dataclasses.replace(self, layers=layers, group_layers=groups, layout=known)


class DeviceBytes:
    """The bytes of an arena's layers, addressed by the layout and not through the registered views."""

    def __init__(self, arena: ArenaView) -> None:
        import torch

        view, layer = arena.layers[0], arena.layout.layers[0]
        self.layout = arena.layout
        self._base = view.storage_offset() * view.element_size() - layer.offset
        self._all = torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())

    def field(self, layer: Layer, field: Field) -> torch.Tensor:
        """Return ``field`` as uint8 [row, head, token, byte]."""
        return self.rows(layer, field, 0, self.layout.num_blocks * layer.rows_per_block)

    def rows(self, layer: Layer, field: Field, first: int, count: int, shift: int = 0) -> torch.Tensor:
        """Return ``count`` rows of ``field`` from ``first`` on, as uint8 [row, head, token, byte], ``shift`` bytes away."""
        return self._all.as_strided(
            (count, field.heads, field.tokens, field.length),
            (layer.row_stride, field.head_stride, field.token_stride, 1),
            self._base + layer.offset + field.offset + first * layer.row_stride + shift,
        )


class Planted:
    """Delegates everything, optional attributes included, to the kernel it wraps; faults override one method.

    ``around_load`` and ``around_store`` see each copy as a function without arguments, after ``ids`` had a chance to alter it.
    """

    def __init__(self, kernel: CopyKernel) -> None:
        self.kernel = kernel
        self.name = kernel.name
        self.arena: ArenaView
        self.bytes: DeviceBytes
        self.host: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "kernel":
            raise AttributeError(name)
        found = getattr(self.kernel, name)
        if name != "load_part":
            return found
        return self._load_part

    def supports(self, layout: Layout) -> bool | str:
        """As the kernel does."""
        return self.kernel.supports(layout)

    def prepare(self, arena: ArenaView) -> Any:
        """Prepare the kernel with what the fault lets it see."""
        self.arena, self.bytes = arena, DeviceBytes(arena)
        owned = self.kernel.prepare(self.seen(SeenArena.of(arena)))
        self.host = arena.host if owned is None else owned
        return owned

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], **named: int) -> None:
        """Store, with the fault around it."""
        self.around_store(
            list(block_ids), list(host_slots), named.get("group", 0), lambda b, s: self.kernel.store(b, s, **named)
        )

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], **named: int) -> None:
        """Load, with the fault around it."""
        self.around_load(
            list(host_slots), list(block_ids), named.get("group", 0), lambda s, b: self.kernel.load(s, b, **named)
        )

    def _load_part(self, slot: int, first: int, block_ids: Sequence[int], **named: int) -> None:
        part: Any = self.kernel
        self.around_load_part(
            slot, first, list(block_ids), named.get("group", 0), lambda f, b: part.load_part(slot, f, b, **named)
        )

    def wait(self) -> None:
        """As the kernel does."""
        self.kernel.wait()

    def close(self) -> None:
        """As the kernel does."""
        self.kernel.close()

    def seen(self, arena: SeenArena) -> ArenaView:
        """Return what the kernel is to see."""
        return arena

    def around_store(
        self, blocks: list[int], slots: list[int], group: int, copy: Callable[[list[int], list[int]], None]
    ) -> None:
        """Do a store; ``copy(blocks, slots)`` is the kernel's."""
        copy(blocks, slots)

    def around_load(
        self, slots: list[int], blocks: list[int], group: int, copy: Callable[[list[int], list[int]], None]
    ) -> None:
        """Do a load; ``copy(slots, blocks)`` is the kernel's."""
        copy(slots, blocks)

    def around_load_part(
        self, slot: int, first: int, blocks: list[int], group: int, copy: Callable[[int, list[int]], None]
    ) -> None:
        """Do a load of a part; ``copy(first, blocks)`` is the kernel's. Treated as a load unless overridden."""
        self.around_load([slot], blocks, group, lambda _, b: copy(first, b))

    def settle(self) -> None:
        """Wait for the copies of the kernel and for ``arena.stream``: nobody reads or writes the arena when it returns."""
        self.kernel.wait()
        if self.arena.stream is not None:
            self.arena.stream.synchronize()

    def layers_of(self, group: int) -> list[Layer]:
        """The layers of ``group``."""
        return [self.arena.layout.layers[i] for i in self.arena.layout.group_layers(group)]

    def view(self, layer: Layer) -> torch.Tensor:
        """The registered view of ``layer``."""
        return self.arena.layers[self.arena.layout.layers.index(layer)]


def rows_of(layer: Layer, blocks: Sequence[int]) -> list[int]:
    """Rows of the view that ``blocks`` take."""
    count = layer.rows_per_block
    return [block * count + r for block in blocks for r in range(count)]


def current(stream: Any) -> AbstractContextManager[Any]:
    """Make ``stream`` torch's current one; None, as on the CPU, changes nothing."""
    import torch

    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


Parts = Callable[[Planted, "Layer"], Iterator["torch.Tensor"]]


class Unwritten(Planted):
    """Leaves part of every loaded block as it was before the load.

    Args:
        kernel: the kernel that does the copying.
        parts: what stays, as views whose first dimension is the row.
        rows: which rows of the loaded blocks are hit; all of them if not given.
    """

    def __init__(
        self, kernel: CopyKernel, parts: Parts, rows: Callable[[Layer, Sequence[int]], list[int]] = rows_of
    ) -> None:
        super().__init__(kernel)
        self._parts = parts
        self._rows = rows

    def around_load(
        self, slots: list[int], blocks: list[int], group: int, copy: Callable[[list[int], list[int]], None]
    ) -> None:
        """Load, then put the parts back."""
        places = [(layer, self._rows(layer, blocks)) for layer in self.layers_of(group)]
        self.settle()
        kept = [(part, rows, part[rows].clone()) for layer, rows in places for part in self._parts(self, layer)]
        self.settle()
        copy(slots, blocks)
        self.settle()
        for part, rows, before in kept:
            part[rows] = before


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Rows of a view, and the rows of another that a kernel takes for them; both [row, ...] of one shape and dtype."""

    right: torch.Tensor
    right_rows: list[int]
    wrong: torch.Tensor
    wrong_rows: list[int]


class Misaddressed(Planted):
    """Copies from and to other places than the engine's; whatever the kernel addresses by, strides or layout."""

    def misplaced(self, blocks: Sequence[int], group: int) -> list[Misplaced]:
        """Return what is not where the kernel thinks it is."""
        raise NotImplementedError

    def around_store(
        self, blocks: list[int], slots: list[int], group: int, copy: Callable[[list[int], list[int]], None]
    ) -> None:
        """Let the kernel read what lies at the wrong places."""
        places = self.misplaced(blocks, group)
        self.settle()
        before = [x.right[x.right_rows] for x in places]
        for place, bytes_ in zip(places, [x.wrong[x.wrong_rows] for x in places], strict=True):
            place.right[place.right_rows] = bytes_
        self.settle()
        copy(blocks, slots)
        self.settle()
        for place, bytes_ in zip(places, before, strict=True):
            place.right[place.right_rows] = bytes_

    def around_load(
        self, slots: list[int], blocks: list[int], group: int, copy: Callable[[list[int], list[int]], None]
    ) -> None:
        """Move what the kernel wrote to the wrong places."""
        places = self.misplaced(blocks, group)
        self.settle()
        before = [x.right[x.right_rows] for x in places]
        self.settle()
        copy(slots, blocks)
        self.settle()
        loaded = [x.right[x.right_rows] for x in places]
        for place, bytes_ in zip(places, before, strict=True):
            place.right[place.right_rows] = bytes_
        for place, bytes_ in zip(places, loaded, strict=True):
            place.wrong[place.wrong_rows] = bytes_
