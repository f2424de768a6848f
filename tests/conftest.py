"""Fixtures by need: a test that asks for ``torch``, ``lmcache``, ``vllm`` or ``gpu`` gets the module, or is skipped with the reason.

``KVVERIFY_REQUIRE`` names modules that must be there (comma separated): their absence then fails instead of skipping. The nox
session that installs them sets it, so that a broken installation cannot pass as a row of skips.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")

settings.register_profile(
    "kvverify-tests",
    deadline=None,
    derandomize=True,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvverify-tests"))

pytest_plugins = ["pytester"]

MARKERS = {"torch": "needs_torch", "lmcache": "needs_stack", "vllm": "needs_stack", "gpu": "needs_gpu"}


# the lab needs torch, and what is tried on it or on other servers the live extra: without these there is nothing to collect
_LIVE = ("torch", "openai", "httpx2", "prometheus_client")
_LIVE_TESTS = ["lab/test_*.py", "live/engines/test_*.py", "tierdiff/test_*.py"]
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in _LIVE) else _LIVE_TESTS


def pytest_configure() -> None:
    """Refuse to begin where a required module is missing: some test modules skip themselves for want of it."""
    required = [name for name in os.environ.get("KVVERIFY_REQUIRE", "").split(",") if name]
    missing = [name for name in required if importlib.util.find_spec(name) is None]
    if missing:
        raise pytest.UsageError(f"required here (KVVERIFY_REQUIRE) and not installed: {', '.join(missing)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by the fixtures it uses."""
    for item in items:
        for name in getattr(item, "fixturenames", ()):
            if name in MARKERS:
                item.add_marker(getattr(pytest.mark, MARKERS[name]))


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if name in os.environ.get("KVVERIFY_REQUIRE", "").split(","):
            pytest.fail(f"{name} is required here (KVVERIFY_REQUIRE) and cannot be imported: {error}")
        pytest.skip(f"{name} cannot be imported: {error}")


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """Torch, any build."""
    return _module("torch")


@pytest.fixture(scope="session")
def lmcache(torch: ModuleType) -> ModuleType:
    """The real LMCache package."""
    return _module("lmcache")


@pytest.fixture(scope="session")
def vllm(torch: ModuleType) -> ModuleType:
    """The real vLLM package; its Triton kernels need the interpreter, which a child process switches on."""
    return _module("vllm")


@pytest.fixture(scope="session")
def gpu(torch: ModuleType) -> str:
    """The device string of a visible GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU visible to torch")
    return "cuda"
