"""``kvverify lab``: it says what it is, and what stands in the way in one line."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from types import ModuleType

import pytest

from kvverify.cli import main as edge
from kvverify.lab.plants import PLANTS


def _heed_interrupts() -> None:
    # a job in the background of a shell ignores them, and its children inherit that
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_it_says_that_it_is_no_serving_engine_and_serves(torch: ModuleType) -> None:
    command = [sys.executable, "-m", "kvverify", "lab", "--port", "0", "--plant", "F21", "--hbm-blocks", "16"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=_heed_interrupts) as process:  # noqa: PLW1509
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, complaint = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "no serving engine" in line
    assert "with the fault F21 noop-or-unindexed: a load copies nothing and is counted" in line
    assert re.search(r"http://127\.0\.0\.1:\d+ serves lab-tiny, turboquant_4bit_nc, 16 HBM blocks of 32 tokens", line)
    assert (process.returncode, complaint.strip()) == (130, "kvverify: interrupted")


def test_a_port_in_use_is_one_line(torch: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert edge.run(["lab", "--port", str(port), "--hbm-blocks", "2"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"kvverify: cannot listen on 127.0.0.1 port {port}: ")
    assert err.endswith("address already in use; take another --port, or 0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plant", "F99"], "unknown lab fault 'F99'; did you mean 'F19'? valid: F05, "),
        (
            ["--plant", "F05", "--kv-cache-dtype", "auto"],
            "--plant F05: this KV cache cannot show it: no format with scales",
        ),
        (["--kv-cache-dtype", "turboquant"], "unknown KV dtype 'turboquant'; did you mean "),
        (["--dram-gib", "0.00001"], "--dram-gib 1e-05: a block takes 148224 bytes; give room for one"),
        (["--model", "nowhere"], "--model nowhere: neither a folder nor a preset; valid: smollm2-135m"),
    ],
)
def test_wrong_options_are_one_line(
    torch: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert edge.run(["lab", "--port", "0", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"kvverify: {message}")
    assert err.count("\n") == 1


def test_the_list_of_faults_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from kvverify.cli.main import run; sys.exit(run(['lab', '--plant', 'list']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [plant.id for plant in PLANTS]


def test_without_torch_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from kvverify.cli.main import run; sys.exit(run(['lab']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("kvverify: the lab needs torch: ")
    assert done.stderr.count("\n") == 1
