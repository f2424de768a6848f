"""The child process that imports one library and runs its comparisons: ``python -m kvverify.conformance.child REQUEST``.

Importing a serving engine takes seconds, changes global state, and may kill the process; the parent only reads lines. Each line
on standard output is one JSON object: ``{"probe": ...}`` first, ``{"check": ...}`` for each comparison, ``{"missing": ...}`` for a
part that cannot run here, ``{"done": true}`` last. Whatever the libraries print goes to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from kvverify.conformance.check import Comparison
from kvverify.errors import EnvironmentProblem

Message = dict[str, Any]


def messages(request: Message) -> Iterator[Message]:
    """Yield what the parent reads."""
    run = {"vllm": _vllm, "lmcache": _lmcache}[request["library"]]
    try:
        yield from run(request)
    except EnvironmentProblem as error:
        yield {"probe": {"available": False, "reason": str(error), "provenance": {}}}
    yield {"done": True}


def _vllm(request: Message) -> Iterator[Message]:
    from kvverify.conformance.vllm import check_vllm
    from kvverify.kernels.vllm_turboquant import VllmTurboQuant

    kernels = VllmTurboQuant(request["device"])
    yield {"probe": {"available": True, "reason": "", "provenance": kernels.provenance()}}
    for preset in request["presets"]:
        for head_size in request["head_sizes"]:
            yield from _made(check_vllm(kernels, preset, head_size, request["seed"]), request)


def _lmcache(request: Message) -> Iterator[Message]:
    from kvverify.conformance.lmcache import check_lmcache, check_storage
    from kvverify.kernels.lmcache_serde import LmcacheSerdes

    serdes = LmcacheSerdes(request["device"])
    yield {"probe": {"available": True, "reason": "", "provenance": serdes.provenance()}}
    given = tuple(request["presets"])
    for head_size in request["head_sizes"]:
        yield from _made(check_lmcache(serdes, given, head_size, request["seed"]), request)
    part = "lmcache-storage"
    try:
        for head_size in request["head_sizes"]:
            yield from _made(check_storage(serdes, given, head_size, request["seed"]), request)
    except EnvironmentProblem as error:
        yield {"missing": {"part": part, "reason": str(error)}}


def _made(comparisons: Iterator[Comparison], request: Message) -> Iterator[Message]:
    """Yield the outcome of each comparison that an interrupted run has not made yet."""
    done = {tuple(name) for name in request["done"]}
    for comparison in comparisons:
        if comparison.name not in done:
            yield {"check": dataclasses.asdict(comparison.check())}


def main(write: Callable[[str], object]) -> None:
    """Answer the request in ``sys.argv[1]``."""
    warnings.simplefilter("ignore")  # the interpreter's numpy overflows where a GPU would give infinity
    for message in messages(json.loads(sys.argv[1])):
        write(json.dumps(message) + "\n")


if __name__ == "__main__":
    stdout = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(stdout, "w", buffering=1) as out:
        main(out.write)
