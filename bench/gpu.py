"""Measure the speed bars of verification on a GPU; exit 1 where a bar is missed.

    python -m bench.gpu [--json FILE] [--only payload,overhead,pool]
    python -m bench.gpu --sweep            check and fill by tile size and warps
    python -m bench.gpu --small            tiny sizes on the CPU: does the script itself work?

Ratios are taken within one run and in turns. Prints a table; --json writes one document.
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
    yield from gpu_campaign.there_and_back(_blocks_together(options, options.large), options.device, BUS)


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
    options.pool, options.tier = (3 * MIB, MIB) if small else (32 * GIB, 4 * GIB)
    options.large = MIB if small else 64 * GIB
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
