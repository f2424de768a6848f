"""Measure what the project promises about speed and memory; exit 1 where a bar is missed.

    nox -s bench
    python -m bench.run [--mib 512] [--rounds 5] [--only check,memory,startup,sequences,selftest,live]

Ratios are taken within one run, the best of several alternating rounds of each side, so that other work on the machine hits both.
Prints a table, and one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import baselines, checks, commands

MIB = 1 << 20


@dataclass(frozen=True)
class Measure:
    """One number. ``bar`` is what it must reach (``at_least``) or stay under; None has no bar. ``value`` None: n/a, see ``note``."""

    name: str
    value: float | None
    unit: str
    bar: float | None = None
    at_least: bool = True
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Is the bar met? None where there is no bar or no value."""
        if self.value is None or self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def check_speed(options: argparse.Namespace) -> Iterator[Measure]:
    """Compare the whole-allocation check with fio and memcmp on as many bytes."""
    size = options.mib * MIB
    oracle = checks.oracle_of(options.mib)
    left, right = baselines.memcmp_pair(size)
    rates: dict[str, list[float]] = {"check": [], "memcmp": [], "fio": []}
    with baselines.fio_file(size) as fio:
        for _ in range(options.rounds):
            rates["check"].append(checks.check_rate(oracle))
            rates["memcmp"].append(baselines.memcmp_rate(left, right))
            if isinstance(fio, Path):
                rates["fio"].append(baselines.fio_mmap_rate(fio, size))
    best = {name: max(values) for name, values in rates.items() if values}
    for name, rate in best.items():
        yield Measure(f"{name}, {options.mib} MiB", rate / 1e9, "GB/s")
    yield Measure("check / memcmp", best["check"] / best["memcmp"], "x", bar=0.5)
    reason = "" if isinstance(fio, Path) else fio
    yield Measure("check / fio mmap crc32c", None if reason else best["check"] / best["fio"], "x", bar=0.8, note=reason)


def memory(options: argparse.Namespace) -> Iterator[Measure]:
    """Measure the peak memory of a check, clean and with a wrong byte, relative to the arena."""
    for name, words in (("clean", []), ("one wrong byte", ["flip"])):
        command = commands.python("-m", "bench.checks", str(options.mib), *words)
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        ratio = json.loads(answer)["peak_ratio"]
        yield Measure(f"peak memory of a check / arena, {name}", ratio, "x", bar=2.2, at_least=False)


def startup(_options: argparse.Namespace) -> Iterator[Measure]:
    """Measure import and help; wall time of a fresh interpreter, its own start included."""
    imported = 1000 * commands.best_seconds(commands.python("-c", "import kvverify"))
    yield Measure("import kvverify", imported, "ms", bar=150, at_least=False)
    helped = 1000 * commands.best_seconds(commands.python("-m", "kvverify", "--help"))
    yield Measure("kvverify --help", helped, "ms", bar=300, at_least=False)


def sequences(options: argparse.Namespace) -> Iterator[Measure]:
    """Measure the campaign on arenas of 1 MiB with the torch reference."""
    with TemporaryDirectory() as folder:
        rate = commands.sequences_per_second(Path(folder), options.examples)
    yield Measure("sequences, torch reference, 1 MiB", rate, "1/s", bar=100)


def selftest(_options: argparse.Namespace) -> Iterator[Measure]:
    """Measure the whole selftest."""
    with TemporaryDirectory() as folder:
        yield Measure("kvverify selftest", commands.selftest_seconds(Path(folder)), "s", bar=90, at_least=False)


def live_client(options: argparse.Namespace) -> Iterator[Measure]:
    """Measure what our client adds to a bare call of the openai client, and the memory of many kept answers."""
    from bench import live  # needs the live extra

    with live.stub(live.TOKENS) as url:
        for name, tokens, as_ids in (
            ("20 tokens", 20, 1),
            ("32k tokens as text", 32_768, 0),
            ("32k token ids", 32_768, 1),
        ):
            best = live.measured("cpu", url, tokens, as_ids, 10, options.rounds)
            note = f"bare {best['bare']:.2f} ms, ours {best['ours']:.2f} ms, {live.TOKENS} tokens answered"
            added = best["ours"] - best["bare"]
            yield Measure(f"CPU added to a request, {name}", added, "ms", bar=0.3, at_least=False, note=note)
        peak = live.measured("memory", url, 1_000)["peak"]
    yield Measure("peak memory, 1,000 answers kept", peak / 1e6, "MB", bar=300, at_least=False)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Measure]]] = {
    "check": check_speed,
    "memory": memory,
    "startup": startup,
    "sequences": sequences,
    "selftest": selftest,
    "live": live_client,
}


def row(measure: Measure, width: int = 44) -> str:
    """Return one line of the table; names take ``width`` columns."""
    value = "n/a" if measure.value is None else f"{measure.value:,.2f} {measure.unit}"
    bar = "" if measure.bar is None else f"{'>=' if measure.at_least else '<='} {measure.bar:g}"
    verdict = {True: "ok", False: "MISSED", None: ""}[measure.ok]
    return f"{measure.name:<{width}} {value:>16}  {bar:<8} {verdict:<7} {measure.note}".rstrip()


def main() -> int:
    """Run the parts and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=512, help="size of the arena whose check is measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=2000, help="sequences of the campaign that is measured")
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated parts of: {', '.join(PARTS)}")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; valid: {', '.join(PARTS)}")
    measures = []
    for part in wanted:
        for measure in PARTS[part](options):
            measures.append(measure)
            print(row(measure), flush=True)
    missed = [m.name for m in measures if m.ok is False]
    document = {"cpus": os.cpu_count(), "measures": [{**asdict(m), "ok": m.ok} for m in measures], "missed": missed}
    print(json.dumps(document))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
