"""A planted fault: what it breaks, where it came from, where it can show, and how it gets into a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvverify.errors import UsageError

if TYPE_CHECKING:
    from kvverify.kernels.contract import CopyKernel
    from kvverify.layout.placement import Layout

Traits = Mapping[str, Any]  # attributes of the kernel with the fault in it, as a child's ``describe`` answers
_ONLY_ON = {"cuda": "needs a GPU stream", "cpu": "needs a host tier beyond 2 GiB, which is mapped sparsely on the CPU"}
CARRIERS = ("torch", "memcpy-async", "memcpy-batch")  # kernels of ours that take any number of blocks a slot
CARRIED_BLOCKS = 4  # that they then put into a slot
Shows = Callable[["Traits", "Layout"], "str | None"]


def everywhere(_traits: Traits, _layout: Layout) -> str | None:
    """No layout hides the fault."""
    return None


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the catalogue.

    Attributes:
        id: F with the number of the published catalogue, or K for our own.
        name: two or three words, joined by hyphens.
        description: what breaks, in one line.
        origin: public reports of the fault in real software.
        by: what of a kernel is altered: views, ids, order or results.
        wrap: puts the fault around a kernel; None where ``elsewhere`` says what it needs.
        shows: None where a layout can show it, else the reason why not.
        chunked: it shows on kernels with several blocks a slot; those of ours that can then put 4 there.
        only_on: the one kind of device, cpu or cuda, whose arena can show it; empty where both can.
        elsewhere: why no copy kernel can show it.
        checks: kinds of failure that count as a kill.
    """

    id: str
    name: str
    description: str
    origin: tuple[str, ...] = ()
    by: str = "results"
    wrap: Callable[[CopyKernel], CopyKernel] | None = None
    shows: Shows = everywhere
    chunked: bool = False
    only_on: str = ""
    elsewhere: str = ""
    checks: tuple[str, ...] = ("wrong-bytes", "early-return")

    def shows_on(self, traits: Traits, layout: Layout) -> str | None:
        """Return None where a campaign on ``layout`` can see the fault, else the reason why it cannot.

        ``traits`` are those of the kernel with the fault planted.
        """
        if reason := self.out_of_reach(traits.get("device", "cpu")):
            return reason
        if self.chunked and traits["blocks_per_slot"] == 1:
            return "the kernel puts one block into a slot"
        return self.shows(traits, layout)

    def out_of_reach(self, device: str) -> str:
        """Return why no copy kernel on ``device`` (cpu or cuda) can show the fault; empty where one can."""
        return self.elsewhere or (_ONLY_ON[self.only_on] if self.only_on not in ("", device) else "")

    def plant(self, kernel: CopyKernel) -> CopyKernel:
        """Return ``kernel`` with the fault in it.

        Raises:
            UsageError: no copy kernel can show the fault.
        """
        if self.wrap is None:
            raise self.not_plantable(self.elsewhere)
        return self.wrap(self._carrier(kernel))

    def not_plantable(self, reason: str) -> UsageError:
        """Return the error for one who wants it in a copy kernel nevertheless."""
        return UsageError(f"fault {self.id} {self.name} cannot be planted into a copy kernel: {reason}")

    def _carrier(self, kernel: CopyKernel) -> CopyKernel:
        if not self.chunked or kernel.name not in CARRIERS:
            return kernel
        make: Any = type(kernel)
        carrier: CopyKernel = make(CARRIED_BLOCKS)
        return carrier
