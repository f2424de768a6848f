"""The host memory of vLLM's offload workers in production, ``SharedOffloadRegion``: one file in shared memory, mapped and pinned."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.vllm_library import import_vllm

_FOLDER = "/dev/shm"  # noqa: S108 - the folder is vLLM's choice


def make_region(slots: int, cell_bytes: int) -> Any:
    """Return a region of ``slots`` rows for one worker that needs ``cell_bytes`` of each; rows are rounded up to whole pages.

    Called by position: 0.26 and 0.32 take the same five arguments under different names. The file loses its name at once, as 0.32
    does itself when it is given a barrier, so that a process that dies leaves nothing behind.

    Raises:
        EnvironmentProblem: too little shared memory, or the system cannot populate it.
    """
    region_class = import_vllm("vllm.v1.kv_offload.cpu.shared_offload_region").SharedOffloadRegion
    step = region_class.BLOCK_SIZE_ALIGNMENT
    row_bytes = -(-cell_bytes // step) * step
    free = shutil.disk_usage(_FOLDER).free
    if free < slots * row_bytes:
        raise EnvironmentProblem(
            f"vLLM's SharedOffloadRegion needs {slots * row_bytes:,} bytes in {_FOLDER}, {free:,} are free; enlarge it (a container's "
            f"--shm-size) or use fewer slots"
        )
    name = f"kvverify_{os.getpid()}_{uuid.uuid4().hex}"
    path = Path(_FOLDER, f"vllm_offload_{name}.mmap")
    try:
        region = region_class(name, slots, 0, row_bytes, cell_bytes)
    except OSError as error:
        raise EnvironmentProblem(f"vLLM's SharedOffloadRegion cannot be made in {_FOLDER}: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    region._creator = False  # nothing left to unlink
    return region


def rows_of(region: Any) -> torch.Tensor:
    """Return the whole region as uint8 [slots, row bytes], over its own memory."""
    return torch.from_numpy(np.asarray(region.create_kv_memoryview())).view(torch.uint8)


def check_pinned(region: Any) -> None:
    """Check that the worker could pin ``region``: without that, vLLM goes on with another copy path.

    Raises:
        EnvironmentProblem: it could not.
    """
    if not region.is_pinned:
        raise EnvironmentProblem(
            f"vLLM could not pin its offload region of {region.total_size_bytes:,} bytes, so its production path cannot run; raise "
            f"the limit of locked memory (ulimit -l)"
        )
