"""What the checks are measured against: fio reading and verifying the same number of bytes from tmpfs, and memcmp."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
TMPFS = Path("/dev/shm")  # noqa: S108 - memory, not a place for files


@contextmanager
def fio_file(size_bytes: int) -> Iterator[Path | str]:
    """Write a file of ``size_bytes`` with crc32c headers to tmpfs and yield it, or the reason why that is not possible."""
    if shutil.which("fio") is None:
        yield "fio is not installed (Debian: apt-get install fio)"
        return
    if not TMPFS.is_dir() or shutil.disk_usage(TMPFS).free < size_bytes * 1.1:
        yield f"tmpfs has no room for {size_bytes:,} bytes"
        return
    with TemporaryDirectory(dir=TMPFS, prefix="kvverify-bench-") as folder:
        path = Path(folder) / "file"
        _fio(path, size_bytes, "--rw=write", "--ioengine=psync", "--do_verify=0")
        yield path


def fio_mmap_rate(path: Path, size_bytes: int) -> float:
    """Return the bytes a second at which fio reads ``path`` through mmap and checks its crc32c, one thread."""
    answer = _fio(path, size_bytes, "--rw=read", "--ioengine=mmap", "--output-format=json")
    job = json.loads(answer[answer.index("{") :])["jobs"][0]
    if job["error"]:
        raise RuntimeError(f"fio: error {job['error']}")
    return float(job["read"]["bw_bytes"])


def memcmp_pair(size_bytes: int) -> tuple[Bytes, Bytes]:
    """Return two equal, touched buffers of ``size_bytes``."""
    left = np.arange(-(-size_bytes // 8), dtype=np.uint64).view(np.uint8)[:size_bytes]
    return left, left.copy()


def memcmp_rate(left: Bytes, right: Bytes) -> float:
    """Return the bytes a second (of one side) at which libc compares two equal buffers, one thread."""
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    start = time.perf_counter()
    answer = memcmp(left.ctypes.data, right.ctypes.data, left.nbytes)
    seconds = time.perf_counter() - start
    if answer:
        raise RuntimeError("memcmp: the buffers differ")
    return left.nbytes / seconds


def _fio(path: Path, size_bytes: int, *options: str) -> str:
    command = ["fio", "--name=b", f"--filename={path}", f"--size={size_bytes}", "--bs=1m", "--verify=crc32c", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=path.parent).stdout
