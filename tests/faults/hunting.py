"""Look for a planted fault in this process: no child, the same programs and the same oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kvverify.faults.fault import Fault
from kvverify.kernels.contract import CopyKernel
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool
from kvverify.roundtrip.campaign import shape_for
from kvverify.roundtrip.collect import collected
from kvverify.roundtrip.executor import Session
from kvverify.roundtrip.outcome import Outcome

EXAMPLES = 64


def traits_of(kernel: CopyKernel, device: str = "cpu") -> dict[str, Any]:
    """What a child's ``describe`` says of a kernel."""
    return {
        "blocks_per_slot": getattr(kernel, "blocks_per_slot", 1),
        "load_part": callable(getattr(kernel, "load_part", None)),
        "groups": getattr(kernel, "groups", False),
        "partial_slots": getattr(kernel, "partial_slots", False),
        "slow": False,
        "owns_host": False,
        "device": device,
        "caller_syncs": sorted(getattr(kernel, "caller_syncs", ())),
        "done": callable(getattr(kernel, "done", None)),
    }


def reference(blocks_per_slot: int = 1) -> CopyKernel:
    """The torch reference; torch is imported here and not when tests are collected."""
    from kvverify.kernels.torch_reference import TorchReference

    return TorchReference(blocks_per_slot)


@cache
def pool() -> tuple[Layout, ...]:
    """All layouts of the campaigns."""
    return tuple(place(recipe) for recipe in campaign_pool())


def showing(fault: Fault, per_slot: int = 1) -> Iterator[Layout]:
    """Layouts that can show ``fault`` with the torch reference."""
    traits = traits_of(fault.plant(reference(per_slot)))
    return (layout for layout in pool() if fault.shows_on(traits, layout) is None)


def hunt(make: Callable[[], CopyKernel], layout: Layout, examples: int = EXAMPLES, seed: int = 11) -> Outcome:
    """Run programs until one fails; the outcome is the failing one or the last."""
    shape = shape_for(layout, traits_of(make()))
    session: Session | None = None
    outcome, closed = Outcome(), False
    for program in collected(shape, seed, examples):
        if session is None:
            session = Session(make(), layout, program.host_slots, program.blocks_per_slot)
        outcome = session.run(program, explain=True, progress=lambda _: None)
        if not outcome.failed and not closed:
            outcome, closed, session = session.close_checked(outcome), True, None
        if outcome.failed:
            break
    return outcome


def hunted(fault: Fault, layouts: int = 3, per_slot: int = 1) -> Outcome:
    """Plant ``fault`` into the torch reference and look for it in the first layouts that can show it."""
    outcome = Outcome()
    for layout, number in zip(showing(fault, per_slot), range(layouts), strict=False):
        # other programs on each: layouts of one shape would get the same ones
        outcome = hunt(lambda: fault.plant(reference(per_slot)), layout, seed=11 + number)
        if outcome.failed:
            return outcome
    return outcome
