"""Adapter over vLLM's Triton block-swap kernel, the one that loads small pages from host memory in production.

vLLM launches it for loads of 16 descriptors or more; here it is launched for both directions and any number, since the question is
whether the kernel copies what its descriptors say. On a GPU it runs compiled, without one under Triton's interpreter.
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
from kvverify.kernels.descriptor_upload import DescriptorUpload
from kvverify.kernels.provenance import file_digests, library_version
from kvverify.kernels.vllm_library import check_version, import_vllm, require_names, vllm_version
from kvverify.kernels.vllm_pages import PageTable, layer_runs, separate_pages

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layer, Layout

_KERNEL_MODULE = "vllm.v1.kv_offload.cpu.swap_blocks_triton"
_RULE = "_select_swap_blocks_fn in vllm/v1/kv_offload/cpu/gpu_worker.py"
_WORD_BYTES = 8  # the kernel copies size // 8 words
_LARGEST_CHUNK_BYTES = 8192
_DESCRIPTORS = 3 * 4096  # source, destination and size of as many pages as an ordinary call has


@dataclass(frozen=True, slots=True)
class _Kernel:
    module: Any  # swap_blocks_triton
    triton: Any
    interpreted: bool


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
        EnvironmentProblem: vLLM or Triton is missing, vLLM's version is unknown, or the kernel is not where it is known to be.
    """
    check_version()
    triton, interpreted = switch_triton_on()
    module = import_vllm(_KERNEL_MODULE)
    require_names(module, ("_swap_blocks_kernel", "NUM_SMS", "THRESHOLD_BYTES"))
    kind = type(module._swap_blocks_kernel).__name__
    if kind != ("InterpretedFunction" if interpreted else "JITFunction"):
        raise EnvironmentProblem(
            f"vllm-triton: vLLM's kernel is a {kind} although TRITON_INTERPRET is {int(interpreted)}: something imported it before; "
            f"use a process of its own"
        )
    return _Kernel(module, triton, interpreted)


class VllmTritonSwap:
    """One descriptor (source, destination, bytes) for each layer and block; the page of a block is one contiguous run.

    The kernel runs on the current stream, so the caller has to wait for nothing. Host slot: the pages of the group's layers back to
    back, each rounded up to 16 bytes.
    """

    name = "vllm-triton"
    groups = True

    def __init__(self) -> None:
        self._kernel = _load()
        self.slow = self._kernel.interpreted
        self.ordered = not self._kernel.interpreted  # launches on one stream take effect one after the other
        self._tables: list[PageTable] = []  # per group
        self._upload: DescriptorUpload | None = None  # None under the interpreter
        self._stream: Any = None

    def supports(self, layout: Layout) -> bool | str:
        """True where vLLM would choose this kernel; else the rule that keeps it away."""
        refusals = (self._refusal(layer) for layer in layout.layers)
        return next((reason for reason in refusals if reason is not None), True)

    def _refusal(self, layer: Layer) -> str | None:
        threshold = self._kernel.module.THRESHOLD_BYTES
        runs = layer_runs(layer)
        page = sum(run.size for run in runs)
        if len(runs) > 1:
            return f"a block of {layer.name} is not one contiguous run, and vLLM makes one descriptor a page ({_RULE})"
        if page % _WORD_BYTES:
            return f"page of {page} bytes ({layer.kv_format}): vLLM takes the kernel only if page % 8 == 0 ({_RULE})"
        if page >= threshold:
            return f"page of {page} bytes ({layer.kv_format}): vLLM copies pages from {threshold} bytes on by DMA ({_RULE})"
        if not self._kernel.interpreted and (layer.offset % _WORD_BYTES or layer.block_stride % _WORD_BYTES):
            return (
                f"{layer.name} begins at {layer.offset}, block stride {layer.block_stride}: the kernel is for 8-byte-aligned "
                f"payloads ({_RULE}); a GPU cannot read words across that"
            )
        return None

    def prepare(self, arena: ArenaView) -> None:
        """Take the addresses of all pages; on a GPU, compile the kernel and allocate what calls need.

        Raises:
            EnvironmentProblem: the arena is on a CPU and Triton runs compiled, or the other way round.
        """
        device = arena.layers[0].device
        if (device.type == "cpu") is not self._kernel.interpreted:
            raise EnvironmentProblem(
                f"vllm-triton: an arena on {device.type} needs TRITON_INTERPRET="
                f"{'1' if device.type == 'cpu' else '0'} before Triton is imported"
            )
        self._stream = arena.stream
        self._tables = [PageTable(pages, arena.host) for pages in separate_pages(arena)]
        if not self._kernel.interpreted:
            self._upload = DescriptorUpload(device, _DESCRIPTORS)
            self._compile()

    def _compile(self) -> None:
        """Launch with sizes of 0, which copies nothing: loading code later may wait for a busy device, and hide a race.

        Triton compiles a variant for one descriptor, for multiples of 16, and for all other numbers.
        """
        for count in (1, 2, 16):
            nothing = torch.zeros(count, dtype=torch.int64)
            self._launch(nothing, nothing, nothing)
        self.wait()

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy device blocks to host slots, paired by position."""
        table = self._tables[group]
        self._launch(table.blocks(block_ids), table.slots(host_slots), table.sizes(len(block_ids)))

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy host slots to device blocks, paired by position."""
        table = self._tables[group]
        self._launch(table.slots(host_slots), table.blocks(block_ids), table.sizes(len(block_ids)))

    def _launch(self, *descriptors: torch.Tensor) -> None:
        """Launch as vLLM does, with sources, destinations and sizes, int64 [n] on the CPU."""
        module, triton = self._kernel.module, self._kernel.triton
        count = descriptors[0].numel()
        largest = max(table.largest for table in self._tables)
        module._swap_blocks_kernel[(min(module.NUM_SMS, count),)](
            *(self._upload(*descriptors) if self._upload is not None else descriptors),
            count,
            BYTES_PER_CHUNK=min(triton.next_power_of_2(largest), _LARGEST_CHUNK_BYTES),
        )

    def wait(self) -> None:
        """Return when the stream's copies are done; the interpreter's are when the call returns."""
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Forget the arena's addresses."""
        self._tables = []
        self._upload = self._stream = None

    def provenance(self) -> dict[str, Any]:
        """Versions of vLLM and Triton, digests of the kernel's module and of what ran it."""
        how = "Triton interpreter on the CPU" if self._kernel.interpreted else "compiled by Triton"
        files = [self._kernel.module.__file__]
        if self._kernel.interpreted:
            files.append(importlib.import_module("triton.runtime.interpreter").__file__)
        found = {
            "library": "vllm",
            "version": vllm_version(),
            "triton": library_version("triton"),
            "path": f"_swap_blocks_kernel, {how}",
            "files": file_digests(files),
        }
        return found if self._kernel.interpreted else {**found, "device": torch.cuda.get_device_name()}
