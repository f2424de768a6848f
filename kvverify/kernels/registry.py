"""From what the user typed to a kernel: built-in names, installed plug-ins, ``pkg.mod:Attr`` and ``file.py:Attr``.

:func:`resolve` imports nothing of a third party, so that the parent process stays light and alive;
:meth:`KernelSource.create` does, and belongs into a child process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from kvverify.errors import ContractError, EnvironmentProblem, UsageError, nearest
from kvverify.plugin_file import import_file

if TYPE_CHECKING:
    from kvverify.kernels.contract import CopyKernel
    from kvverify.layout.placement import Layout

ENTRY_POINT_GROUP = "kvverify.kernels"
_METHODS = ("supports", "prepare", "store", "load", "wait", "close")
_LMCACHE_QUIET: Mapping[str, str] = {
    "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
}


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Where a kernel comes from.

    ``spec`` means the same kernel in any process and working folder; ``environment`` are the variables a process needs before
    it calls :meth:`create`.
    """

    name: str
    spec: str
    target: str  # module:attribute or file:attribute
    device: str = "cpu"
    builtin: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def create(self, **keywords: Any) -> CopyKernel:
        """Import the kernel's code and return a new instance; ``keywords`` go to its constructor.

        Raises:
            UsageError: no such module or attribute.
            EnvironmentProblem: a library the kernel needs is missing.
            ContractError: what it names is not a copy kernel.
            Exception: whatever the code of a third party raises when imported or called.
        """
        try:
            factory = self._factory()
            _check_callable_with(factory, keywords, self.spec)
            kernel = factory(**keywords)
        except ImportError as error:
            raise EnvironmentProblem(f"{self.name} cannot run here: {error}") from error
        check_kernel(kernel, self.spec)
        checked: CopyKernel = kernel
        return checked

    def _factory(self) -> Callable[..., Any]:
        where, _, attribute = self.target.rpartition(":")
        module = import_file(Path(where)) if where.endswith(".py") else self._import_module(where)
        value: Any = module
        for part in attribute.split("."):
            if not hasattr(value, part):
                public = [n for n, v in vars(value).items() if callable(v) and not n.startswith("_")]
                raise UsageError(f"kernel {self.spec!r}: {where} has no attribute {part!r}; {nearest(part, public)}")
            value = getattr(value, part)
        if not callable(value):
            raise ContractError(
                f"{self.spec}: got a value of type {type(value).__name__}, expected a class or a function without arguments "
                f"that returns a kernel"
            )
        factory: Callable[..., Any] = value
        return factory

    def _import_module(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"kernel {self.spec!r}: no module named {error.name!r}; is it installed here?"
                ) from error
            raise


_VLLM_QUIET: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
_Builtin = Mapping[str, tuple[str, Mapping[str, str]]]
_BUILTIN: Mapping[str, _Builtin] = MappingProxyType(
    {
        "cpu": {
            "torch": ("torch_reference:TorchReference", {}),
            "lmcache": ("lmcache:LMCacheTransfer", _LMCACHE_QUIET),
            "lmcache-block": ("lmcache:LMCacheBlockOp", _LMCACHE_QUIET),
            "vllm-triton": ("vllm_triton:VllmTritonSwap", {"TRITON_INTERPRET": "1"}),
        },
        "cuda": {
            "torch": ("torch_reference:TorchReference", {}),
            "memcpy-async": ("memcpy_batch:AsyncMemcpy", {}),
            "memcpy-batch": ("memcpy_batch:BatchMemcpy", {}),
            "vllm-swap-blocks": ("vllm_swap:VllmSwapBlocks", _VLLM_QUIET),
            "vllm-swap-blocks-batch": ("vllm_swap:VllmSwapBlocksBatch", _VLLM_QUIET),
            "vllm-triton": ("vllm_triton:VllmTritonSwap", _VLLM_QUIET),
            "vllm-offload": ("vllm_offload:VllmOffloadWorker", _VLLM_QUIET),
            "vllm-dma": ("vllm_dma:VllmDmaBackend", _VLLM_QUIET),
            "lmcache": ("lmcache_cuda:LMCacheCudaTransfer", _LMCACHE_QUIET),
            "lmcache-block": ("lmcache_cuda:LMCacheCudaBlockOp", _LMCACHE_QUIET),
            "lmcache-slots": ("lmcache_slots:LMCacheSlotOp", _LMCACHE_QUIET),
            "lmcache-direct": ("lmcache_direct:LMCacheDirectCopy", _LMCACHE_QUIET),
        },
    }
)
DEVICES = tuple(_BUILTIN)


def names(device: str = "cpu") -> list[str]:
    """Names that need no path: kernels built in for ``device``, then installed plug-ins."""
    return [*_BUILTIN[device], *sorted(set(_entry_points()) - set(_BUILTIN[device]))]


def resolve(spec: str, device: str = "cpu") -> KernelSource:
    """Return the source of the kernel called ``spec`` for copies from and to ``device``, without importing it.

    ``cuda`` is the GPU of a CUDA or a ROCm build of torch, as torch names both.

    Raises:
        UsageError: no kernel of that name, no such file, or nothing after the colon.
    """
    builtin = _BUILTIN.get(device, _BUILTIN["cpu"])
    if spec in builtin:
        target, environment = builtin[spec]
        return KernelSource(spec, spec, f"kvverify.kernels.{target}", device, builtin=True, environment=environment)
    plugins = _entry_points()
    if spec in plugins:
        return KernelSource(spec, spec, plugins[spec], device)
    elsewhere = [other for other, kernels in _BUILTIN.items() if spec in kernels]
    if elsewhere:
        raise UsageError(f"kernel {spec!r} copies from and to {elsewhere[0]} only; add --device {elsewhere[0]}")
    where, colon, attribute = spec.rpartition(":")
    if not colon:
        example = f"; for a file write {spec}:ClassName" if spec.endswith(".py") else ""
        raise UsageError(
            f"unknown kernel {spec!r}: {nearest(spec, names(device))}; or pkg.mod:Attr, file.py:Attr{example}"
        )
    if not where or not attribute or not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(f"kernel {spec!r}: expected pkg.mod:Attr or file.py:Attr with a name after the colon")
    if where.endswith(".py") or "/" in where:
        return _file_source(spec, Path(where), attribute, device)
    if not all(part.isidentifier() for part in where.split(".")):
        raise UsageError(f"kernel {spec!r}: {where!r} is neither a module name nor a .py file")
    return KernelSource(spec, spec, spec, device)


def _file_source(spec: str, path: Path, attribute: str, device: str) -> KernelSource:
    if not path.is_file():
        raise UsageError(f"kernel {spec!r}: no file {str(path)!r} (looked in {Path.cwd()})")
    if path.suffix != ".py":
        raise UsageError(f"kernel {spec!r}: {str(path)!r} is not a .py file")
    full = f"{path.resolve()}:{attribute}"
    return KernelSource(f"{path.name}:{attribute}", full, full, device)


def _entry_points() -> dict[str, str]:
    return {e.name: e.value for e in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _check_callable_with(factory: Callable[..., Any], keywords: Mapping[str, Any], spec: str) -> None:
    try:
        inspect.signature(factory).bind(**keywords)
    except TypeError as error:
        raise ContractError(f"{spec}: expected a class or function without required arguments: {error}") from error


def check_kernel(kernel: object, spec: str) -> None:
    """Check what of the plug-in contract can be seen without calling the kernel.

    Raises:
        ContractError: a method or the name is missing, or an optional attribute has a value that means nothing.
    """
    missing = [m for m in _METHODS if not callable(getattr(kernel, m, None))]
    name = getattr(kernel, "name", None)
    if not isinstance(name, str) or not name:
        missing.insert(0, "name (a non-empty string)")
    if missing:
        raise ContractError(
            f"{spec}: {type(kernel).__name__} has no {', '.join(missing)}; a copy kernel has name, {', '.join(_METHODS)}"
        )
    for attribute in ("groups", "ordered", "partial_slots", "slow"):
        value = getattr(kernel, attribute, False)
        if not isinstance(value, bool):
            raise ContractError(f"{spec}: {attribute} is {value!r}, expected True or False")
    count = getattr(kernel, "blocks_per_slot", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ContractError(f"{spec}: blocks_per_slot is {count!r}, expected an integer of 1 or more")
    syncs: object = getattr(kernel, "caller_syncs", set())
    if not isinstance(syncs, (set, frozenset)) or not syncs <= {"store", "load"}:
        raise ContractError(f"{spec}: caller_syncs is {syncs!r}, expected a set of 'store' and 'load'")


def supports_reason(kernel: CopyKernel, layout: Layout) -> str | None:
    """Return None where ``kernel`` serves ``layout``, else its reason (plug-in contract, rule 1).

    Raises:
        ContractError: ``supports`` returned neither True nor a non-empty reason.
    """
    answer = kernel.supports(layout)
    if answer is True:
        return None
    if isinstance(answer, str) and answer.strip():
        return answer
    raise ContractError(
        f"{kernel.name}: supports({layout.name!r}) returned {answer!r}, expected True or a non-empty reason (rule 1)"
    )
