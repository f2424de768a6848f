"""Measure the speed bars of verification on a GPU; exit 1 where a bar is missed.

    python -m bench.gpu [--json FILE] [--only payload,overhead,pool]
    python -m bench.gpu --sweep            check and fill by tile size and warps
    python -m bench.gpu --small            tiny sizes on the CPU: does the script itself work?

Ratios are taken within one run and in turns. Prints a table; --json writes one document.

What to expect, written down before anything was measured. Counted in the machine code that Triton 3.7 makes for sm_90 (a tile of 8 KiB, of
contents): with 4 warps a check executes 388 instructions a thread for 8 words, 48 a word, and a fill 343; with 2 warps a check executes
about 620 for 16 words, 39 a word. About 100 a thread find out which tile it is and what its block holds. An H200 issues at most 132
multiprocessors x 128 lanes x 1.98 GHz = 33 T instructions a second. The bar of 3.4 TB/s is 0.43 T words a second, hence 62 % of all issue
slots with 4 warps and 50 % with 2: the check is bound by integer instructions as much as by memory, and may miss the bar with 4 warps.

Loads are of 8 bytes a lane, 256 bytes a warp and coalesced, and issued before the hash is computed: 8 KiB in flight a program, 96 KiB a
multiprocessor with 12 programs, where 4.3 TB/s at 1 us of latency need 33 KiB. So 16 bytes a lane are not needed for bandwidth. They need
`tl.multiple_of` hints that odd pages do not allow, and save 4 instructions of 388.

If a bar is missed, in this order: --sweep (more words a thread spread the fixed part: 8 KiB with 2 warps, 16 KiB with 4, which suits
the 4-bit pages of 17,152 bytes and the bf16 ones of 64 KiB alike); then one program for all tiles of a page, which spreads it further; then a body without masks
for tiles that are full.

A 32 GiB pool with a tier of 2 GiB, per lap of 30 GiB stored and 30 GiB loaded (64 GB, 1.17 s at 55 GB/s): fills 8 ms, occupants 8 ms, the
check 10 ms, the reset 10 ms, one digest of the tier 43 ms at 50 GB/s over the bus. Digests cost tier / bus for every check, so they alone take
4 % where a check follows on 30 tiers full of copies, and would take half where one follows on two.
64 GiB there and back: copies 2.5 s, the tier's first write and one digest 1.4 s each, bookkeeping of 55,000 blocks 1 s, the rest 0.1 s.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import gpu_campaign, gpu_payload
from bench.gpu_payload import GIB
from bench.run import Measure, row
from kvverify.arena.device_arena import device_named
from kvverify.layout.placement import Layout

MIB = 1 << 20
BUS = 55e9  # bytes a second each way between an H200 and pinned memory, measured with plain copies


def payload(options: argparse.Namespace) -> Iterator[Measure]:
    """Check and fill against a device copy."""
    for kind in gpu_payload.KINDS:
        for size in options.sizes:
            yield from gpu_payload.rates(
                gpu_payload.layout_of(kind, size, small=options.small), device_named(options.device), options.rounds
            )
            gpu_campaign.release()


def overhead(options: argparse.Namespace) -> Iterator[Measure]:
    """Verification against the raw copies of a campaign."""
    yield from gpu_campaign.overhead(_blocks_together(options, options.pool), options.tier, options.device, laps=2)


def pool(options: argparse.Namespace) -> Iterator[Measure]:
    """A whole pool there and back."""
    yield from gpu_campaign.there_and_back(
        _blocks_together(options, options.large), options.device, BUS, _blocks_together(options, options.warm)
    )


def sweep(options: argparse.Namespace) -> Iterator[Measure]:
    """Tile sizes and warps."""
    yield from gpu_payload.sweep(
        gpu_payload.layout_of("mixed", options.sizes[0], small=options.small),
        device_named(options.device),
        options.rounds,
    )


def _blocks_together(options: argparse.Namespace, size: int) -> Layout:
    return gpu_payload.layout_of("mixed", size, block_major=True, small=options.small)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Measure]]] = {
    "payload": payload,
    "overhead": overhead,
    "pool": pool,
}


def sized(options: argparse.Namespace) -> argparse.Namespace:
    """Add the sizes, bytes, and the device."""
    small = options.small
    options.device = "cpu" if small else "cuda"
    options.sizes = (MIB // 4,) if small else (4 * GIB, 32 * GIB)
    options.pool, options.tier = (3 * MIB, MIB) if small else (32 * GIB, 2 * GIB)
    options.large = MIB if small else 64 * GIB
    options.warm = 3 * MIB if small else GIB
    options.rounds = 2 if small else 20
    return options


def main() -> int:
    """Run the parts and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated parts of: {', '.join(PARTS)}")
    parser.add_argument("--sweep", action="store_true", help="only check and fill, by tile size and warps")
    parser.add_argument(
        "--small", action="store_true", help="tiny sizes on the CPU; its numbers mean nothing, its bars do not count"
    )
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = sized(parser.parse_args())
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; valid: {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no GPU; --small runs without one")
    start, measures = time.perf_counter(), list[Measure]()
    for part in [sweep] if options.sweep else [PARTS[name] for name in wanted]:
        for measure in part(options):
            measures.append(measure)
            print(row(measure, 64), flush=True)
        gc.collect()
        gpu_campaign.release()
    missed = [m.name for m in measures if m.ok is False]
    print(f"{len(missed)} bars missed, {time.perf_counter() - start:.0f} s on {where(options.device)}")
    if options.json is not None:
        document: dict[str, Any] = {"device": where(options.device), "torch": torch.__version__, "missed": missed}
        document["measures"] = [{**asdict(m), "ok": m.ok} for m in measures]
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed and not options.small else 0


def where(device: str) -> str:
    """Say what was measured."""
    return torch.cuda.get_device_name() if device == "cuda" else "the CPU, which tells nothing"


if __name__ == "__main__":
    raise SystemExit(main())
