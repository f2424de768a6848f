"""Adapter over LMCache's serdes, which turn KV objects into bytes for its L2 tier: alone, and through its StorageManager.

An object is ``[2, layers, tokens, heads * head_size]``, K first. Without a GPU the TurboQuant serde's Triton kernels run under the
interpreter, and two of its functions that ask for a CUDA device are answered with the CPU; nothing else of it is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.lmcache_library import KNOWN_VERSIONS
from kvverify.kernels.provenance import file_digests, library_version

_SERDE = "lmcache.v1.distributed.serde"
_STORE_S = 60.0  # one small object; the machine may be busy
_L1_BYTES = 64 << 20
FILL = 0xA5


@dataclass(frozen=True, slots=True)
class Serialised:
    """What a serializer wrote: ``data`` the whole buffer of ``estimated`` bytes, ``written`` how many it says it wrote."""

    data: torch.Tensor
    estimated: int
    written: int


class LmcacheSerdes:
    """The serdes of the installed LMCache.

    Raises:
        EnvironmentProblem: not installed, a version that the adapter does not know, or a part that cannot be imported.
    """

    name = "lmcache"

    def __init__(self, device: str = "cpu") -> None:
        version = library_version("lmcache")
        if version not in KNOWN_VERSIONS:
            known = ", ".join(KNOWN_VERSIONS)
            raise EnvironmentProblem(
                "LMCache is not installed here; `nox -s stacks` makes an environment that has it"
                if version == "unknown"
                else f"LMCache {version} is installed, the adapter knows {known}; install lmcache=={KNOWN_VERSIONS[-1]}"
            )
        self.version = version
        self.device = torch.device(device)
        self._api = _module("lmcache.v1.distributed.api")
        self._memory = _module("lmcache.v1.memory_management")
        self._turboquant = _module(f"{_SERDE}.turboquant.turboquant")
        self._fp8 = _module(f"{_SERDE}.fp8")
        self._asymmetric = _module(f"{_SERDE}.asym_k16_v8")
        self._factory = _module(f"{_SERDE}.factory")
        if device == "cpu":
            self._answer_for_a_gpu()

    def _answer_for_a_gpu(self) -> None:
        self._turboquant._select_cuda_device = lambda *_: torch.device("cpu")
        _module(f"{_SERDE}.turboquant.decode_kernel")._FP8_E4B15[0] = 0  # E4M3, as on every GPU since 2022

    def fp8(self, dtype: str = "float8_e4m3fn") -> tuple[Any, Any]:
        """Return LMCache's fp8 serializer and deserializer."""
        kind = getattr(torch, dtype)
        return self._fp8.Fp8QuantizationSerializer(kind), self._fp8.Fp8QuantizationDeserializer(kind)

    def turboquant(
        self, preset: str, head_size: int, *, block_tokens: int = 16, skip_first: int = 2, skip_last: int = 2
    ) -> tuple[Any, Any]:
        """Return LMCache's TurboQuant serializer and deserializer.

        Raises:
            ValueError: LMCache refuses the numbers.
        """
        config = self._turboquant.TurboQuantSerdeConfig(
            preset=preset,
            head_dim=head_size,
            block_size=block_tokens,
            skip_first_layers=skip_first,
            skip_last_layers=skip_last,
        )
        return self._turboquant.TurboQuantSerializer(config), self._turboquant.TurboQuantDeserializer(config)

    def asymmetric(self) -> tuple[Any, Any]:
        """Return the serializer and deserializer that keep K and quantise V to fp8 with one scale."""
        return self._asymmetric.AsymK16V8MultiSerializer(), self._asymmetric.AsymK16V8MultiDeserializer()

    def serialise(self, serializer: Any, *objects: torch.Tensor) -> Serialised:
        """Serialise one object, or K and V for a serde that takes a group, into a buffer of the estimated size."""
        estimated = self.estimate(serializer, *objects)
        device = self._device(objects)
        target = self._object(torch.full((estimated,), FILL, dtype=torch.uint8, device=device))
        sources = [self._object(x.to(device)) for x in objects]
        written = serializer.serialize(tuple(sources) if len(sources) > 1 else sources[0], target, self._key())
        return Serialised(target.tensor.cpu(), estimated, written)

    def deserialise(self, deserializer: Any, data: torch.Tensor, *like: torch.Tensor) -> list[torch.Tensor]:
        """Deserialise bytes into objects shaped ``like`` these, filled with a pattern before."""
        device = self._device(like)
        targets = [self._object(torch.full_like(x, 7.0).to(device)) for x in like]
        source = self._object(data.to(device))
        deserializer.deserialize(source, tuple(targets) if len(targets) > 1 else targets[0], self._key())
        return [target.tensor.cpu() for target in targets]

    def _device(self, objects: tuple[torch.Tensor, ...]) -> torch.device:
        # the serde of a group reads its buffer as a numpy array, which only host memory allows
        return torch.device("cpu") if len(objects) > 1 else self.device

    def estimate(self, serializer: Any, *shaped: torch.Tensor) -> int:
        """Return the size in bytes that the serializer expects to need."""
        layouts = [self._layout(x) for x in shaped]
        return int(serializer.estimate_serialized_size(tuple(layouts) if len(layouts) > 1 else layouts[0]))

    @contextlib.contextmanager
    def storage(self, serde: Mapping[str, Any], folder: Path) -> Iterator[LmcacheStorage]:
        """Yield LMCache's StorageManager with an L2 of files in ``folder`` behind the serde, as its server would set it up.

        Raises:
            EnvironmentProblem: a package that it imports is missing.
            ValueError: LMCache refuses the serde.
        """
        manager = _module("lmcache.v1.distributed.storage_manager")
        config = _module("lmcache.v1.distributed.config")
        adapters = _module("lmcache.v1.distributed.l2_adapters.config")
        spec = json.dumps({"type": "fs", "base_path": str(folder), "serde": dict(serde)})
        l2 = adapters.parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[spec]))
        memory = config.L1MemoryManagerConfig(_L1_BYTES, use_lazy=False, shm_name="")
        settings = config.StorageManagerConfig(config.L1ManagerConfig(memory), config.EvictionConfig("LRU"), l2)
        storage = manager.StorageManager(settings)
        try:
            yield LmcacheStorage(storage, self._api, folder)
        finally:
            storage.close()

    def provenance(self) -> dict[str, Any]:
        """Version, digests of the modules that do the work, and what ran the Triton kernels."""
        modules = [self._turboquant, self._fp8, self._asymmetric, _module("lmcache.v1.kv_codec.asym_k16_v8")]
        modules += [_module(f"{_SERDE}.turboquant.{name}") for name in ("store_kernel", "decode_kernel")]
        how = "Triton interpreter on the CPU" if self.device.type == "cpu" else f"Triton on {self.device}"
        return {
            "library": "lmcache",
            "version": self.version,
            "triton": library_version("triton"),
            "device": str(self.device),
            "path": f"fp8, asymmetric and TurboQuant serdes, {how}",
            "files": file_digests(module.__file__ for module in modules),
        }

    def _layout(self, x: torch.Tensor) -> Any:
        return self._api.MemoryLayoutDesc(shapes=[x.shape], dtypes=[x.dtype])

    def _key(self) -> Any:
        return self._api.ObjectKey(b"kvverify", "model", 0)

    def _object(self, x: torch.Tensor) -> Any:
        raw = x.contiguous().view(torch.uint8).flatten()
        metadata = self._memory.MemoryObjMetadata(
            shape=x.shape,
            dtype=x.dtype,
            address=0,
            phy_size=raw.numel(),
            fmt=self._memory.MemoryFormat.KV_2LTD,
            ref_count=1,
            shapes=[x.shape],
            dtypes=[x.dtype],
        )
        return self._memory.TensorMemoryObj(raw, metadata, None)


@dataclass(frozen=True, slots=True)
class LmcacheStorage:
    """A running StorageManager whose lower tier is a folder."""

    manager: Any
    api: Any
    folder: Path

    def put(self, x: torch.Tensor) -> bytes:
        """Write an object to L1 and return the file that L2 made of it.

        Raises:
            EnvironmentProblem: no memory, or no whole file within a minute.
        """
        key, layout = self._key(), self._layout(x)
        reserved = self.manager.reserve_write([key], layout)
        if key not in reserved:
            raise EnvironmentProblem("lmcache: the StorageManager reserved no memory for one object; free some")
        reserved[key].tensor.copy_(x)
        self.manager.finish_write([key])
        return self._settled_file()

    def get(self, x: torch.Tensor) -> torch.Tensor:
        """Drop the object from L1, fetch it from L2 and return it; ``x`` gives shape and dtype.

        Raises:
            EnvironmentProblem: it did not come back from L2 within a minute.
        """
        key = self._key()
        end = time.monotonic() + _STORE_S
        while self.manager.delete_l1_keys([key])[0] != 1:  # locked until the store to L2 is booked
            if time.monotonic() > end:
                raise EnvironmentProblem("lmcache: the object stayed locked in L1; see LMCache's log")
            time.sleep(0.02)
        group = self.api.GroupedObjectKeys(keys=[key], object_group_id=0, layout_desc=self._layout(x))
        handle = self.manager.submit_prefetch_task(self.api.PrefetchTaskSpec([group]))
        done = self.manager.wait_prefetch_status(handle, _STORE_S)
        result = self.manager.query_prefetch_status(handle) if done else None
        if result is None or result.l2_hit_count != 1:
            raise EnvironmentProblem("lmcache: the object did not come back from L2; see LMCache's log")
        with self.manager.read_prefetched_results([key]) as objects:
            found: torch.Tensor = objects[0].tensor.clone()
        self.manager.finish_read_prefetched([key])
        return found

    def _settled_file(self) -> bytes:
        end, seen = time.monotonic() + _STORE_S, b""
        while time.monotonic() < end:
            files = sorted(self.folder.rglob("*.data"))
            if files:
                now = files[0].read_bytes()
                if now and now == seen:
                    return now
                seen = now
            time.sleep(0.05)
        raise EnvironmentProblem(f"lmcache: no whole file appeared in the L2 folder within {_STORE_S:g} s")

    def _key(self) -> Any:
        return self.api.ObjectKey(b"kvverify" * 2, "model", 0)

    def _layout(self, x: torch.Tensor) -> Any:
        return self.api.MemoryLayoutDesc(shapes=[x.shape], dtypes=[x.dtype])


@functools.cache
def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvironmentProblem(f"LMCache {library_version('lmcache')}: {name} cannot be imported: {error}") from error
