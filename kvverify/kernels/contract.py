"""The plug-in contract: what a copy kernel is given and what it must offer.

The rules are in docs and DESIGN; the parts that code can check are checked by :mod:`kvverify.kernels.registry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from kvverify.layout.placement import Layout


class ArenaView(Protocol):
    """What ``prepare`` receives.

    ``layers[i]`` is the view of ``layout.layers[i]``: uint8, bfloat16, float16 or float32, logical
    ``[row, head, token, content]`` or ``[row, 2, head, token, head_size]``; strides and offset carry the physical order.
    ``host`` is uint8 ``[host_slots, host_slot_bytes]``. ``stream`` is None on the CPU.
    """

    layout: Layout
    layers: list[torch.Tensor]
    group_layers: list[list[torch.Tensor]]
    host: torch.Tensor
    stream: Any
    rank: int
    world_size: int


@runtime_checkable
class CopyKernel(Protocol):
    """A KV copy kernel between device blocks and host slots.

    Making an instance imports the library behind it and raises ImportError or EnvironmentProblem where that cannot run here.

    Optional attributes, used where present: ``groups`` (accepts several block tables; calls then get ``group=g``),
    ``ordered`` (effects in issue order), ``caller_syncs``, ``blocks_per_slot``, ``load_part(slot, first, block_ids)``,
    ``partial_slots`` (the last slot of a store may get fewer than ``blocks_per_slot`` blocks; without it kvverify only makes
    full slots), ``slow`` (a copy takes milliseconds, as under an interpreter: campaigns give it fewer blocks), ``done()``,
    ``provenance()`` (callable before ``prepare`` and after the copies; says which path really ran).
    """

    name: str

    def supports(self, layout: Layout) -> bool | str:
        """Return True, or the reason why this layout cannot be served."""
        ...

    def prepare(self, arena: ArenaView) -> Any:
        """Take the arena's tensors; a library that owns its host tier returns its own uint8 [slots, bytes] buffer."""
        ...

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copy device blocks to host slots, paired by position."""
        ...

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy host slots to device blocks, paired by position."""
        ...

    def wait(self) -> None:
        """Return when every copy issued so far is visible to host and device."""
        ...

    def close(self) -> None:
        """Release what ``prepare`` took."""
        ...
