"""What was tested: model, engine, build, KV formats, tiers, GPU, and every kernel with the hashes of its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvverify.events import BatchFinished, CodecCompared, EngineDescribed, KernelProbed
from kvverify.events_accuracy import ArmIncluded, ArmStarted
from kvverify.report.signoff.gather import Run
from kvverify.report.words import gpu_line, plural

NOT_TOLD = "not told by any run"
_IDENTITY = {"model": "model", "engine": "engine", "build": "build", "KV format": "kv_cache_dtype", "tiers": "tier"}
ONE_VALUE = ("build", "GPU", "kvverify")  # two of these are two things tested; engines are told apart under servers
MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel or library that ran, as it says of itself. ``files`` maps a file to its SHA-256."""

    name: str
    library: str
    path: str
    device: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it says of itself, with the runs that asked it: ``runs`` maps their names to their commands."""

    engine: str
    model: str
    build: str
    formats: str
    tiers: str
    runs: Mapping[str, str]

    @property
    def name(self) -> str:
        """Engine and KV formats, by which servers are told apart."""
        return f"{self.engine} with {self.formats}"


@dataclass(frozen=True, slots=True)
class Subject:
    """``facts`` maps a word to its distinct values over all runs, none where no run tells it; ``kernels`` are those that ran.

    ``servers`` are those that live runs asked. ``conflicts`` say where runs tested different things, which no one verdict covers.
    """

    facts: Mapping[str, Sequence[str]]
    kernels: Sequence[Kernel]
    conflicts: Sequence[str]
    servers: Sequence[Server] = ()

    @property
    def libraries(self) -> dict[str, list[str]]:
        """The names of the kernels by the library that they are of."""
        found: dict[str, list[str]] = {}
        for kernel in self.kernels:
            if kernel.name not in (own := found.setdefault(kernel.library, [])):
                own.append(kernel.name)
        return found

    def words(self, fact: str) -> str:
        """Return the values of a fact in one line, of many the first."""
        values = self.facts[fact]
        more = f" and {len(values) - MOST_VALUES} more" if len(values) > MOST_VALUES else ""
        return ", ".join(values[:MOST_VALUES]) + more or NOT_TOLD


def subject(runs: Sequence[Run]) -> Subject:
    """Return what the runs tested."""
    told: dict[str, dict[str, None]] = {
        word: {} for word in ("model", "engine", "build", "KV format", "tiers", "GPU", "kvverify")
    }
    for run in sorted(runs, key=lambda run: not run.of(EngineDescribed)):  # what is served before what was only copied
        for word, value in _facts(run):
            if value:
                told[word].setdefault(value)
    kernels = list(_kernels(runs))
    facts = {word: list(values) for word, values in told.items()}
    return Subject(facts, kernels, [*_several(facts), *_two_builds(kernels)], _servers(runs))


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    start = run.summary.start
    if start:
        yield "kvverify", start.version
        yield "model", str(start.options.get("model") or "")
    for e in run.of(EngineDescribed):
        yield "model", e.model
        yield "engine", e.engine
        yield "build", str(e.info.get("build") or "")
        yield from (("KV format", name) for name in _layer_formats(e.info))
        yield from (("tiers", tier) for tier in _tiers(e.info))
    for identity in [] if run.of(EngineDescribed) else _identities(run):  # the engine itself tells more exactly
        for word, key in _IDENTITY.items():
            yield word, str(identity.get(key) or "")
    for batch in run.of(BatchFinished):
        yield from (("KV format", name) for name in batch.formats)
    for compared in run.of(CodecCompared):
        yield "KV format", compared.format
    yield "GPU", gpu_line(run.summary.gpu)


def _identities(run: Run) -> list[dict[str, Any]]:
    started = [e.identity for e in run.of(ArmStarted)]
    return started + [e.identity for e in run.of(ArmIncluded)]


def _layer_formats(info: Mapping[str, Any]) -> list[str]:
    layers = info.get("kv_layers") or []
    names = [str(layer[0]) for layer in layers if isinstance(layer, list | tuple) and layer]
    told = str(info.get("kv_cache_dtype") or "")
    return list(dict.fromkeys(names)) or [told]


def _servers(runs: Sequence[Run]) -> list[Server]:
    """Return each server once, whatever asked it; one that was started again with other pools is the same."""
    found: dict[tuple[str, str, str, str], tuple[str, dict[str, str]]] = {}
    for run in runs:
        for e in run.of(EngineDescribed):
            facts = e.engine, e.model, str(e.info.get("build") or ""), ", ".join(_layer_formats(e.info))
            _, asked = found.setdefault(facts, (", ".join(_tiers(e.info, sizes=True)), {}))
            asked[run.name] = run.command
    return [Server(*facts, tiers, asked) for facts, (tiers, asked) in found.items()]


def _tiers(info: Mapping[str, Any], *, sizes: bool = False) -> list[str]:
    """Return the tiers as far as the engine tells: an engine without a connector names a tier it has not."""
    capacity = {str(k): v for k, v in dict(info.get("capacity_tokens") or {}).items()}
    named = dict.fromkeys(["hbm", *capacity, *([str(info["lower_tier"])] if info.get("lower_tier") else [])])
    told = {tier for tier in named if sizes and isinstance(capacity.get(tier), int)}
    return [f"{tier} of {plural(capacity[tier], 'token')}" if tier in told else tier for tier in named]


def _kernels(runs: Iterable[Run]) -> Iterator[Kernel]:
    seen: set[tuple[Any, ...]] = set()
    for run in runs:
        devices = {row.kernel: row.device for row in run.summary.kernels}
        for e in run.of(KernelProbed):
            if not e.available:
                continue
            known = e.provenance
            library = " ".join(str(known[key]) for key in ("library", "version") if known.get(key))
            files = {str(k): str(v) for k, v in dict(known.get("files") or {}).items()}
            device = str(known.get("device") or devices.get(e.kernel) or "")
            kernel = Kernel(e.kernel, library, str(known.get("path") or ""), device, files)
            key = (kernel.name, library, kernel.path, device, tuple(files.items()))
            if key not in seen:
                seen.add(key)
                yield kernel


def _several(facts: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"the runs differ in {word} ({'; '.join(facts[word])}): none of these was tested by all of them"
        for word in ONE_VALUE
        if len(facts[word]) > 1
    ]


def _two_builds(kernels: Sequence[Kernel]) -> list[str]:
    found = []
    for name in dict.fromkeys(kernel.name for kernel in kernels):
        own = [kernel for kernel in kernels if kernel.name == name and kernel.library]
        if len({(kernel.library, tuple(sorted(kernel.files.items()))) for kernel in own}) > 1:
            builds = "; ".join(dict.fromkeys(f"{k.library} on {k.device or 'an unknown device'}" for k in own))
            found.append(f"kernel {name} is there in {len(own)} builds: {builds}")
    return found
