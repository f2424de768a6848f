"""Which kernels and layouts the property tests meet.

    pytest fuzz                                     the kernels that run on this machine
    pytest fuzz --kernel my_kernel.py:MyKernel      a kernel of your own; repeatable
    pytest fuzz --device cuda                       the engine's memory on a GPU, also under ROCm

``nox -s roundtrip -- ...`` hands its campaign arguments on in KVVERIFY_FUZZ_ARGUMENTS (a JSON list).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvverify.kernels.registry import DEVICES, names, resolve
from kvverify.layout.document import to_document
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import Recipe
from kvverify.roundtrip.campaign import shape_for
from kvverify.roundtrip.child import Child, Unavailable
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Program
from kvverify.roundtrip.strategies import Shape


@dataclass(frozen=True, slots=True)
class Bench:
    """One kernel in its child process."""

    child: Child

    def shape(self, recipe: Recipe) -> Shape:
        """What programs may use on this layout; skips the test where the kernel refuses it."""
        layout = place(recipe)
        answer = self.child.describe(to_document(recipe))
        if answer["reason"] is not None:
            pytest.skip(f"{self.child.source.name} refuses {layout.name}: {answer['reason']}")
        if len(layout.groups) > 1 and not answer["groups"]:
            pytest.skip(f"{self.child.source.name} does not declare groups = True")
        return shape_for(layout, answer)

    def run(self, recipe: Recipe, program: Program) -> Outcome:
        """Execute one program with an explanation of what goes wrong."""
        return self.child.run(to_document(recipe), program, explain=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--kernel`` and ``--device``."""
    parser.addoption("--kernel", action="append", default=[], metavar="SPEC", help="kernel to test; repeatable")
    parser.addoption("--device", choices=DEVICES, help="where the engine's memory lies; cpu if not given")


def named_kernels(config: pytest.Config) -> list[str]:
    """Kernels that the user asked for, here or on the command line of the session."""
    given: list[str] = config.getoption("--kernel")
    return list(dict.fromkeys([*given, *_handed("--kernel")]))


def device(config: pytest.Config) -> str:
    """Where the engine's memory lies, as said here or on the command line of the session."""
    given: str | None = config.getoption("--device")
    return given or next(reversed(_handed("--device")), "cpu")


def _handed(option: str) -> list[str]:
    """Values of ``option`` on the command line of the session, in order."""
    words: list[str] = json.loads(os.environ.get("KVVERIFY_FUZZ_ARGUMENTS", "[]"))
    joined = [word.split("=", 1) if word.startswith(f"{option}=") else [word] for word in words]
    return [after for word, after in itertools.pairwise(itertools.chain(*joined)) if word == option]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One round of tests per kernel, and one test per layout where a test wants layouts."""
    if "bench" in metafunc.fixturenames:
        kernels = named_kernels(metafunc.config) or names(device(metafunc.config))
        metafunc.parametrize("bench", kernels, indirect=True, scope="session")
    if "recipe" in metafunc.fixturenames and not any(metafunc.definition.iter_markers("parametrize")):
        chosen = campaign_pool()[:24]
        metafunc.parametrize("recipe", chosen, ids=[place(r).name for r in chosen])


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The kernel named by the parameter; one that nobody asked for by name may be missing here."""
    spec: Any = request.param
    with Child(resolve(spec, device(request.config))) as child:
        try:
            child.start()
        except Unavailable as error:
            if spec in named_kernels(request.config):
                pytest.fail(str(error))
            pytest.skip(str(error))
        yield Bench(child)
