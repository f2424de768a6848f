"""The faults that the lab can have, each a small change at one place, and what a client can see of it.

``seen_by`` are the commands that must not say PASS, ``verdict`` what they say instead. A fault without ``seen_by`` is one that
no client can see: ``missing`` names the evidence that it would take. It is declared here, in advance.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvverify.errors import UsageError, nearest

LATE_SECONDS = 5.0  # by how much an answer is late


@dataclass(frozen=True, slots=True)
class Plant:
    """One fault. ``kernel`` is the fault of the catalogue of copy kernels that is put around the copies; empty if none is."""

    id: str
    name: str
    breaks: str
    seen_by: tuple[str, ...] = ()
    verdict: str = ""
    missing: str = ""
    kernel: str = ""


_DIFF, _BOTH, _ISOLATION = ("tier-diff",), ("tier-diff", "isolation"), ("isolation",)
CLEAN = Plant("none", "none", "nothing")
PLANTS = (
    Plant("F05", "sidecar-dropped", "a load leaves scales and norms out", _DIFF, "FAIL", kernel="F05"),
    Plant("F10", "full-hit-tail", "the last token of a load is left out", _DIFF, "FAIL", kernel="F10"),
    Plant(
        "F16",
        "swallowed-error",
        "the third block of a load fails and is counted as loaded",
        _BOTH,
        "FAIL",
        kernel="F16",
    ),
    Plant("F17", "key-tenant-fields", "the key of a block omits salt and adapter", _ISOLATION, "FAIL"),
    Plant(
        "F19", "unstable-hash", "each request hashes with a seed of its own: nothing is ever hit", _BOTH, "INCONCLUSIVE"
    ),
    Plant(
        "F20",
        "reset-hbm-only",
        "a reset of all tiers leaves DRAM as it is and says that it succeeded",
        missing="only a run that asks for a reset of all tiers can count hits after it; flushing HBM alone is right",
    ),
    Plant("F21", "noop-or-unindexed", "a load copies nothing and is counted", _BOTH, "FAIL", kernel="F21"),
    Plant("F21b", "store-unindexed", "what is stored is never indexed, so DRAM never hits", _BOTH, "INCONCLUSIVE"),
    Plant("wrong-block", "wrong-block", "a load reads the slots of what was stored before", _BOTH, "FAIL"),
    # keys carry their positions, so attention is the same sum in another order: tokens stay, the last bits and digests tell
    Plant("swapped-blocks", "swapped-blocks", "the blocks of a load arrive in reverse order", _DIFF, "FAIL"),
    Plant("stale-block", "stale-block", "DRAM's copy is taken before the block is computed", _BOTH, "FAIL"),
    Plant(
        "swapped-layers", "swapped-layers", "layers of one format get each other's bytes", _BOTH, "FAIL", kernel="F11"
    ),
    Plant(
        "lost-prefix",
        "prefix-lost-beside-new",
        "a hit computed while a new prompt waits that is no shorter attends to its own new tokens alone",
        _ISOLATION,
        "FAIL",
    ),
    Plant("hits-recomputed", "hits-recomputed", "DRAM hits are counted and then computed anew", _DIFF, "INCONCLUSIVE"),
    Plant("flush-lies", "flush-that-lies", "the flush does nothing and says that it succeeded", _BOTH, "INCONCLUSIVE"),
    Plant(
        "counters-lie",
        "counters-that-lie",
        "DRAM hits and their bytes are counted and then computed anew",
        missing="answers and blocks are those of a hit; only an altered DRAM tier, or a trace of the copies, tells",
    ),
    Plant("counters-stuck", "counters-stuck", "no counter moves", _BOTH, "INCONCLUSIVE"),
    Plant("counters-back", "counters-backwards", "counters go backwards", _BOTH, "INCONCLUSIVE"),
    Plant(
        "late",
        "answer-late",
        f"an answer is {LATE_SECONDS:g} s late, beyond the client's time-out",
        _BOTH,
        "INCONCLUSIVE",
    ),
    Plant("cut", "answer-cut", "an answer ends in the middle of the stream", _BOTH, "INCONCLUSIVE"),
    Plant("null-logprob", "null-logprob", "a logprob is null", _DIFF, "FAIL"),
    Plant("nan-logprob", "nan-logprob", "a logprob is not a number", _DIFF, "FAIL"),
)


def plant_named(name: str | None) -> Plant:
    """Return the plant with the id or name ``name``, whatever its case; the clean lab for None.

    Raises:
        UsageError: there is none.
    """
    if name is None:
        return CLEAN
    for plant in PLANTS:
        if name.lower() in (plant.id.lower(), plant.name):
            return plant
    raise UsageError(f"unknown lab fault {name!r}; {nearest(name, [plant.id for plant in PLANTS])}")
