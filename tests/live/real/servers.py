"""Real servers as child processes: vLLM's CPU build and LMCache's server, each in a process group that ends with the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 480.0  # 45 to 120 were seen on two cores
MODEL = "smollm2"
BLOCK, CHUNK = 32, 64  # tokens
FLAGS = [
    *("--served-model-name", MODEL, "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"),
    *("--block-size", str(BLOCK), "--enable-prefix-caching", "--max-model-len", "1024", "--max-num-seqs", "4"),
    *("--num-gpu-blocks-override", "49", "--enable-prompt-tokens-details"),  # small, so that fillers take seconds
    *("--worker-extension-cls", "kvverify.inserver.worker_extension.KvverifyWorker"),
]
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_NO_USAGE_STATS": "1",
}


class NotStarted(Exception):
    """A server ended or did not answer in time; its last words are in the message."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def vllm(
    model: Path, log: Path, *more: str, connector: Mapping[str, Any] | None = None, **environment: str
) -> Iterator[str]:
    """Serve ``model`` and yield the URL. ``connector`` is the KV connector's name and options, ``more`` are further flags."""
    port = free_port()
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    env = {
        "OMP_NUM_THREADS": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
        **environment,
    }
    transfer = ["--kv-transfer-config", json.dumps({"kv_role": "kv_both", **connector})] if connector else []
    serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    with running([*serve, *FLAGS, *transfer, *more], env, log, f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def lmcache(log: Path, *, l2: Mapping[str, Any] | None = None, **environment: str) -> Iterator[tuple[int, str]]:
    """Start LMCache's server with a DRAM tier of 1 GB; yield the port for the connector and the URL of its HTTP side.

    ``l2`` are the options of a tier behind it.
    """
    port, http = free_port(), free_port()
    serve = [
        *(str(Path(sys.executable).parent / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--http-host", "127.0.0.1", "--http-port", str(http), "--chunk-size", str(CHUNK)),
        *("--l1-size-gb", "1", "--eviction-policy", "LRU", "--supported-transfer-mode", "auto"),
        *(("--l2-adapter", json.dumps(l2)) if l2 else ()),
    ]
    with running(serve, environment, log, f"http://127.0.0.1:{http}/healthcheck"):
        yield port, f"http://127.0.0.1:{http}"


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path, ready: str) -> Iterator[None]:
    """Run a server until it answers at ``ready``, and end it with all its children.

    Raises:
        NotStarted: it ended, or did not answer in time.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **QUIET, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, log, ready)
        yield
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], log: Path, ready: str) -> None:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise NotStarted(f"ended with {process.returncode}, see {log}:\n{_last_words(log)}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(ready, timeout=5).close()  # noqa: S310 -- the URL is ours
            return
        time.sleep(0.5)
    raise NotStarted(f"no answer at {ready} within {START_SECONDS:g} s, see {log}:\n{_last_words(log)}")


def _last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            break
    with contextlib.suppress(ProcessLookupError):  # children may outlive their parent
        os.killpg(process.pid, signal.SIGKILL)
