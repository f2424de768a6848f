"""The Triton kernels of payloads write and count what numpy does, shown by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_the_kernels_write_and_count_what_numpy_does() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.arena.payload_kernels_interpreted", "200"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) > 1_000_000
