"""From a URL to the adapter of the engine that answers there: built-in adapters, then installed plug-ins.

A plug-in is an entry point of group ``kvverify.engines``, or ``pkg.mod:Attr`` or ``file.py:Attr`` for ``--engine``. It names a
class, or a function, called with the URL (and, where it takes a second parameter, with :class:`EngineOptions`). An adapter
module is imported when its engine is looked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvverify.errors import ContractError, EnvironmentProblem, UsageError, nearest
from kvverify.live.control import Control, ServerProblem, server_root
from kvverify.live.engine import Engine
from kvverify.live.engines.options import EngineOptions
from kvverify.plugin_file import import_file

ENTRY_POINT_GROUP = "kvverify.engines"
AUTO = "auto"
_METHODS = ("detect", "describe", "flush", "evidence", "expected", "close")
_BUILTIN: Mapping[str, str] = MappingProxyType(  # in the order in which they are asked
    {
        "lab": "lab:Lab",
        "vllm-lmcache": "vllm_lmcache:VllmLmcache",
        "vllm-lmcache-in-process": "vllm_lmcache:VllmLmcacheInProcess",
        "vllm-native": "vllm_native:VllmNative",
        "vllm-simple": "vllm_native:VllmSimple",
        "vllm-example": "vllm_example:VllmExample",
        "sglang": "sglang:Sglang",
        "llamacpp": "llamacpp:LlamaCpp",
    }
)
_LAST: Mapping[str, str] = MappingProxyType({"vllm": "vllm:Vllm"})  # any vLLM whose connector nobody knows


def names() -> list[str]:
    """Return the words for ``--engine`` beside ``auto``, in the order in which ``auto`` asks them."""
    own = {**_BUILTIN, **_LAST}
    return [*_BUILTIN, *sorted(set(_plugins()) - set(own)), *_LAST]


async def find(url: str, name: str = AUTO, options: EngineOptions | None = None) -> Engine:
    """Return the adapter for the server at ``url``; its connections are open, ``close`` it.

    Args:
        url: http://HOST:PORT, with or without /v1.
        name: an adapter's name, or ``pkg.mod:Attr`` or ``file.py:Attr``, used without asking whether it fits; ``auto`` asks all.
        options: what the server does not say.

    Raises:
        UsageError: no such adapter, or no URL.
        ServerProblem: nothing answers at ``url``, or no adapter knows what does.
        ContractError: a plug-in is not an engine.
        EnvironmentProblem: a plug-in cannot be imported.
    """
    root, chosen = server_root(url), options or EngineOptions()
    known = names()
    if name != AUTO:
        if name not in known and ":" not in name:
            raise UsageError(f"unknown engine {name!r}; {nearest(name, [AUTO, *known])}; or pkg.mod:Attr, file.py:Attr")
        return create(name, root, chosen)
    await _check_alive(root, chosen)
    for candidate in known:
        engine = create(candidate, root, chosen)
        recognised = False
        try:
            recognised = await _detects(engine, candidate)
        finally:
            if not recognised:
                await engine.close()
        if recognised:
            return engine
    raise ServerProblem(f"{root}: no engine that kvverify knows; give --engine, one of {', '.join(known)}")


def create(name: str, url: str, options: EngineOptions) -> Engine:
    """Return a new adapter called ``name`` for ``url``, without asking the server.

    Raises:
        ContractError: a plug-in is not an engine.
        EnvironmentProblem: it cannot be imported.
    """
    own = {**_BUILTIN, **_LAST}
    target = f"kvverify.live.engines.{own[name]}" if name in own else _plugins().get(name, name)
    factory = _factory(name, target)
    try:
        inspect.signature(factory).bind(url, options)
        engine = factory(url, options)
    except TypeError:
        try:
            inspect.signature(factory).bind(url)
        except TypeError as error:
            raise ContractError(f"engine {name!r}: {target} must be callable with a URL: {error}") from error
        engine = factory(url)
    return check_engine(engine, f"engine {name!r} ({target})")


def check_engine(engine: Any, where: str) -> Engine:
    """Check what of the plug-in contract can be seen without calling it.

    Raises:
        ContractError: the name or a method is missing.
    """
    missing = [method for method in _METHODS if not callable(getattr(engine, method, None))]
    if not isinstance(getattr(engine, "name", None), str) or not engine.name:
        missing.insert(0, "name (a non-empty string)")
    if missing:
        raise ContractError(
            f"{where}: {type(engine).__name__} has no {', '.join(missing)}; an engine has name, {', '.join(_METHODS)}"
        )
    checked: Engine = engine
    return checked


async def _detects(engine: Engine, name: str) -> bool:
    answer: Any = await engine.detect()
    if not isinstance(answer, bool):
        raise ContractError(f"engine {name!r}: detect() returned {answer!r}, expected True or False")
    return answer


async def _check_alive(url: str, options: EngineOptions) -> None:
    """Tell a server that is down from one that nobody knows: adapters only say that it is not theirs."""
    async with Control(url, timeout_s=options.timeout_s) as control:
        try:
            await control.get_text("/v1/models")
        except ServerProblem as problem:
            if problem.status is None:
                raise


def _factory(name: str, target: str) -> Callable[..., Any]:
    where, _, attribute = target.rpartition(":")
    if where.endswith(".py") and not Path(where).is_file():
        raise UsageError(f"engine {name!r}: no file {where!r} (looked in {Path.cwd()})")
    try:
        found: Any = import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(f"engine {name!r} ({target}) cannot be imported: {error}") from error
    if not callable(found):
        raise ContractError(f"engine {name!r}: {target} is a {type(found).__name__}, expected a class or a function")
    factory: Callable[..., Any] = found
    return factory


def _plugins() -> dict[str, str]:
    return {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
