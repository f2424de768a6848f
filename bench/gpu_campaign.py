"""What verification adds to raw copies: a long program over a large pool, run with and without it, and a whole pool there and back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.block_copy import BlockCopy
from bench.gpu_payload import GIB
from bench.run import Measure
from kvverify.arena.arena import Arena
from kvverify.arena.device_arena import DeviceArena
from kvverify.arena.device_oracle import DeviceOracle
from kvverify.arena.device_place import DevicePlace
from kvverify.layout.placement import Layout
from kvverify.roundtrip.executor import Session
from kvverify.roundtrip.program import Check, Evict, Fill, Ids, Load, Program, Step, Store

PER_SLOT = 8
_DIGESTS = "of check: host digests"
_PARTS = {  # methods of the oracle whose time is told apart
    "_write_all": "reset",
    "_write_contents": "fill",
    "_write_occupant": "occupant",
    "check": "check",
}


class TimedPlace:
    """Device memory whose oracle notes in ``parts`` the seconds of each operation, waiting for the stream around it."""

    def __init__(self, device: str) -> None:
        self._place = DevicePlace(device)
        self.parts: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def arena(self, layout: Layout, host_slots: int, blocks_per_slot: int) -> DeviceArena:
        """Return an arena of device memory."""
        return self._place.arena(layout, host_slots, blocks_per_slot)

    def oracle(self, arena: Arena) -> DeviceOracle:
        """Return an oracle that can be told to note times."""
        assert isinstance(arena, DeviceArena)
        return _Timed(arena)

    def watch(self, oracle: Any) -> None:
        """Note times from now on."""
        for name, part in _PARTS.items():
            setattr(oracle, name, self._timed(getattr(oracle, name), part, oracle.arena))
        oracle._host.check = self._timed(oracle._host.check, _DIGESTS, oracle.arena)

    def _timed(self, method: Callable[..., Any], part: str, arena: Arena) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            arena.synchronize()
            start = time.perf_counter()
            answer = method(*arguments)
            arena.synchronize()
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - start
            self.calls[part] = self.calls.get(part, 0) + 1
            return answer

        return timed


class _Timed(DeviceOracle):
    """An oracle with room for replaced methods."""


def groups_of(layout: Layout) -> list[Ids]:
    """Return the blocks in runs of one slot's."""
    return [tuple(range(b, b + PER_SLOT)) for b in range(0, layout.num_blocks - PER_SLOT + 1, PER_SLOT)]


def long_program(layout: Layout, slots: int, laps: int, seed: int = 1) -> Program:
    """Return laps over the whole pool: again and again one tier full is filled, stored, and loaded to blocks not yet loaded to.

    Between laps stand a check and an eviction, since loaded blocks are looked at before anybody writes over them; the check
    after the last lap is that of every sequence's end.

    Raises:
        ValueError: the pool has no room for blocks to store and blocks to load to.
    """
    draw, groups, steps = random.Random(seed), groups_of(layout), list[Step]()
    sources = list[Ids]()
    if len(groups) < 2 * slots:
        raise ValueError(f"a pool of {len(groups)} slots' blocks is too small for a tier of {slots}")
    for lap in range(laps):
        if lap:
            steps += [Check(), Evict(_flat(sources))]
        draw.shuffle(groups)
        sources, rest = groups[:slots], groups[slots:]
        for first in range(0, len(rest) - slots + 1, slots):
            order = draw.sample(range(slots), slots)
            steps += [
                Fill(_flat(sources)),
                Store(_flat(sources), tuple(order)),
                Load(tuple(order), _flat(rest[first : first + slots])),
            ]
    return Program(seed, tuple(steps), slots, PER_SLOT)


def whole_pool(layout: Layout, seed: int = 2) -> Program:
    """Return a program that stores every block, poisons the pool, and loads every block to another place."""
    groups = groups_of(layout)
    slots = tuple(range(len(groups)))
    moved = _flat([*groups[1:], groups[0]])
    every = _flat(groups)
    return Program(seed, (Fill(every), Store(every, slots), Evict(every), Load(slots, moved)), len(slots), PER_SLOT)


def _flat(groups: list[Ids]) -> Ids:
    return tuple(block for group in groups for block in group)


def raw_copies(session: Session, program: Program) -> float:
    """Return the seconds that the copies of ``program`` take with nothing else; it waits where the program checks."""
    kernel: Any = session.kernel
    with session.arena.current():
        session.arena.synchronize()
        start = time.perf_counter()
        for step in program.steps:
            match step:
                case Store(blocks, slots):
                    kernel.store(blocks, slots)
                case Load(slots, blocks):
                    kernel.load(slots, blocks)
                case Check():
                    kernel.wait()
                case _:
                    pass
        kernel.wait()
        return time.perf_counter() - start


def verified(session: Session, program: Program) -> tuple[float, int]:
    """Return the seconds that ``program`` takes with verification, and the bytes it moved."""
    session.arena.synchronize()
    start = time.perf_counter()
    outcome = session.run(program, explain=True, progress=lambda _: None)
    taken = time.perf_counter() - start
    if outcome.failed:
        raise RuntimeError(f"a right kernel failed: {outcome.headline}")
    return taken, outcome.moved_bytes


def overhead(layout: Layout, tier: int, device: str, laps: int) -> Iterator[Measure]:
    """Measure what verification adds to the raw copies of a long program with a host tier of ``tier`` bytes."""
    slots = max(1, tier // (layout.layers[0].block_stride * PER_SLOT))
    place, kernel = TimedPlace(device), BlockCopy(PER_SLOT)
    session = Session(kernel, layout, slots, PER_SLOT, place)
    oracle: Any = session.oracle
    program = long_program(layout, slots, laps)
    label = f"{layout.size_bytes / GIB:.3g} GiB pool, {tier / GIB:.3g} GiB tier"
    first, _ = verified(session, long_program(layout, slots, 1, seed=3))
    yield Measure(f"first sequence, compiling included, {label}", first, "s")
    kernel.spans.clear()
    raw = min(raw_copies(session, program) for _ in range(2))
    kernel.spans.clear()
    total, moved = verified(session, program)
    on_stream = kernel.seconds()
    yield Measure(f"raw copies, {label}", moved / raw / 1e9, "GB/s", note=f"{moved / 1e9:.1f} GB in {raw:.3f} s")
    if on_stream:
        yield Measure("the same copies by the stream's events", on_stream, "s")
    yield Measure("verified in all", total, "s", note=f"{laps} laps, {len(program.steps)} steps")
    yield Measure(f"verification / raw copies, {label}", total / raw - 1, "x", bar=0.15, at_least=False)
    place.watch(oracle)
    verified(session, program)
    for part, seconds in place.parts.items():
        yield Measure(
            f"{part}, of the raw copies", seconds / raw, "x", note=f"{seconds:.3f} s, waiting around each call"
        )
    digested = oracle._host.nbytes * place.calls[_DIGESTS]
    yield Measure(
        "host digests", digested / place.parts[_DIGESTS] / 1e9, "GB/s", note=f"{place.calls[_DIGESTS]} checks"
    )
    session.close()


def there_and_back(layout: Layout, device: str, bus: float, warm: Layout) -> Iterator[Measure]:
    """Measure a whole pool stored, poisoned, loaded and verified; pinned allocation and compiling are outside of the time.

    Args:
        layout: of the pool.
        device: where it lies.
        bus: bytes a second each way that the bar allows for the copies.
        warm: a small pool of the same kind, on which everything is compiled.
    """
    for _ in overhead(warm, warm.size_bytes // 4, device, laps=1):
        pass
    start = time.perf_counter()
    place, kernel = TimedPlace(device), BlockCopy(PER_SLOT)
    program = whole_pool(layout)
    session = Session(kernel, layout, program.host_slots, PER_SLOT, place)
    label = f"{layout.size_bytes / GIB:.3g} GiB"
    yield Measure(f"allocating and pinning, {label}", time.perf_counter() - start, "s", note="outside of the time")
    place.watch(session.oracle)
    total, moved = verified(session, program)
    copies = moved / bus
    yield Measure(
        f"there and back, {label}", total, "s", bar=10 + copies, at_least=False, note=f"10 s + {copies:.1f} s"
    )
    if seconds := kernel.seconds():
        yield Measure("its copies by the stream's events", seconds, "s", note=f"{moved / seconds / 1e9:.1f} GB/s")
    for part, seconds in place.parts.items():
        yield Measure(f"{part}, of it", seconds, "s")
    session.close()


def release() -> None:
    """Give memory back between measurements."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
