"""From a URL to an adapter, and plug-ins."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from kvverify.errors import ContractError, EnvironmentProblem, UsageError
from kvverify.live.control import ServerProblem
from kvverify.live.engine import Engine
from kvverify.live.engines import registry
from tests.live.engines.fakes import FakeVllm, Routes, serve
from tests.live.engines.running import QUICK

CONNECTORS = [
    ("", "vllm"),
    ("NixlConnector", "vllm"),
    ("OffloadingConnector", "vllm-native"),
    ("SimpleCPUOffloadConnector", "vllm-simple"),
    ("ExampleConnector", "vllm-example"),
    ("LMCacheMPConnector", "vllm-lmcache"),
    ("LMCacheConnectorV1", "vllm-lmcache-in-process"),
]
MARKS = [
    ("vllm:kv_offload_load_bytes", "vllm-native"),
    ("vllm:simple_kv_offload_used_blocks", "vllm-simple"),
    ("vllm:lmcache_mp_lookup_duration_seconds", "vllm-lmcache"),
    ("lmcache:num_hit_tokens", "vllm-lmcache-in-process"),
]


def found(url: str, name: str = "auto") -> str:
    async def run() -> str:
        engine = await registry.find(url, name, QUICK)
        await engine.close()
        return engine.name

    return asyncio.run(run())


@pytest.mark.parametrize(("connector", "name"), CONNECTORS)
def test_the_connector_decides(connector: str, name: str) -> None:
    with serve(FakeVllm(connector)) as url:
        assert found(url) == name
        assert found(f"{url}/v1/") == name


@pytest.mark.parametrize(("metric", "name"), MARKS)
def test_without_dev_mode_a_connectors_metrics_do(metric: str, name: str) -> None:
    server = FakeVllm(dev=False)
    server.page.add(metric, 1)
    with serve(server) as url:
        assert found(url) == name


def test_dev_mode_without_a_connector_is_not_overruled_by_metrics() -> None:
    server = FakeVllm("")
    server.page.add("vllm:kv_offload_load_bytes", 1)
    with serve(server) as url:
        assert found(url) == "vllm"


def test_a_name_is_taken_without_asking() -> None:
    server = FakeVllm(dev=False)
    with serve(server) as url:
        assert found(url, "vllm-native") == "vllm-native"
    assert server.asked == []


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'vllm-native'"):
        found("http://127.0.0.1:9", "vllm-nativ")


def test_what_is_down_and_what_nobody_knows() -> None:
    with pytest.raises(ServerProblem, match="is the server up"):
        found("http://127.0.0.1:9")
    with serve(Routes()) as url, pytest.raises(ServerProblem, match="no engine that kvverify knows"):
        found(url)
    models = {("GET", "/v1/models"): lambda query, body: {"data": [{"id": "m", "owned_by": "somebody"}]}}
    with serve(Routes(models)) as url, pytest.raises(ServerProblem, match="no engine that kvverify knows"):
        found(url)


def test_the_url_must_be_one() -> None:
    with pytest.raises(UsageError, match="not the URL of a server"):
        found("localhost:8000")


def test_every_adapter_keeps_the_contract() -> None:
    async def run() -> None:
        for name in registry.names():
            engine = registry.create(name, "http://127.0.0.1:9", QUICK)
            assert isinstance(engine, Engine)
            assert engine.name == name
            assert await engine.detect() is False
            await engine.close()

    asyncio.run(run())


PLUGIN = """
from kvverify.live.engine import EngineInfo, Evidence, Expected


class Mine:
    name = "mine"

    def __init__(self, url{second}):
        self.url = url
        self.closed = False

    async def detect(self):
        return {detects}

    async def describe(self):
        return EngineInfo("mine", "m")

    async def flush(self, tier):
        pass

    async def evidence(self):
        return Evidence()

    def expected(self, prompt_tokens):
        return Expected(0, 0, prompt_tokens)

    async def close(self):
        self.closed = True


class Half:
    name = "half"

    def __init__(self, url):
        pass


async_value = 3
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, **words: str) -> None:
    """Put a distribution with one entry point on the path."""
    (folder / "mine_engine.py").write_text(PLUGIN.format(**{"second": "", "detects": "True", **words}))
    info = folder / "mine_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kvverify.engines]\nmine = {target}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "mine_engine", raising=False)


@pytest.mark.parametrize("second", ["", ", options", ", options=None"])
def test_a_plug_in_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    install(tmp_path, monkeypatch, "mine_engine:Mine", second=second)
    assert registry.names()[-2:] == ["mine", "vllm"]
    with serve(Routes()) as url:
        assert found(url) == "mine"


def test_a_plug_in_comes_before_vllm_with_a_connector_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "mine_engine:Mine")
    with serve(FakeVllm("NixlConnector")) as url:
        assert found(url) == "mine"
    with serve(FakeVllm("OffloadingConnector")) as url:
        assert found(url) == "vllm-native"


BROKEN: list[tuple[str, dict[str, str], type[Exception], str]] = [
    ("mine_engine:Half", {}, ContractError, "Half has no detect, describe"),
    ("mine_engine:async_value", {}, ContractError, "expected a class or a function"),
    ("mine_engine:Nothing", {}, EnvironmentProblem, "cannot be imported"),
    ("no_such_module:X", {}, EnvironmentProblem, "cannot be imported"),
    ("mine_engine:Mine", {"detects": "1"}, ContractError, "detect\\(\\) returned 1"),
    ("mine_engine:Mine", {"second": ", options, more"}, ContractError, "must be callable with a URL"),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_plug_in_that_breaks_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    target, words, error, match = broken
    install(tmp_path, monkeypatch, target, **words)
    with serve(Routes()) as url, pytest.raises(error, match=match):
        found(url)


def test_a_plug_in_of_a_file_is_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "own_engine.py"
    file.write_text(PLUGIN.format(second="", detects="False"))
    with serve(Routes()) as url:
        assert found(url, f"{file}:Mine") == "mine"
        with pytest.raises(EnvironmentProblem, match="cannot be imported"):
            found(url, f"{file}:Other")
        with pytest.raises(UsageError, match=r"no file .*missing\.py"):
            found(url, f"{tmp_path}/missing.py:Mine")
