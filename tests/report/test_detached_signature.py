"""A detached signature is verified by the user's own tool; where OpenSSH is installed, by the real one."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvverify.cli.main import run as kvverify
from kvverify.report.manifest import write_manifest

# a signing tool as small as one can be: the signature is the digest of the file; exit code 0 where it fits
TOOL = """
import hashlib, pathlib, sys
signature, file = map(pathlib.Path, sys.argv[1:])
good = signature.read_text() == hashlib.sha256(file.read_bytes()).hexdigest() and file.read_bytes() == sys.stdin.buffer.read()
print("asking the keyring")
print("Good signature" if good else "BAD signature")
sys.exit(not good)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run, folder = tmp_path / "run", tmp_path / "signoff"
    run.mkdir()
    folder.mkdir()
    (run / "events.ndjson").write_text("{}\n")
    (folder / "signoff.html").write_text("<body></body>")
    manifest = write_manifest(folder, [folder / "signoff.html"], [run])
    (tmp_path / "tool.py").write_text(TOOL)
    (tmp_path / "sig").write_text(hashlib.sha256(manifest.read_bytes()).hexdigest())
    return folder


def verify(folder: Path, command: str, signature: str = "sig", target: str = "signoff.html") -> int:
    words = [
        "verify-report",
        str(folder / target),
        "--signature",
        str(folder.parent / signature),
        "--verify-with",
        command,
    ]
    return kvverify(words)


@pytest.mark.parametrize("target", ["signoff.html", "manifest.json", ""])
def test_the_users_tool_gets_manifest_and_signature(
    folder: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(folder, f"{sys.executable} {folder.parent / 'tool.py'} {{signature}} {{file}}", target=target) == 0
    assert capsys.readouterr().out.endswith("signature: Good signature\n")


def test_a_refused_signature_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "sig").write_text("of something else")
    assert verify(folder, f"{sys.executable} {folder.parent / 'tool.py'} {{signature}} {{file}}") == 1
    assert "sig: signature refused: BAD signature" in capsys.readouterr().out


def test_a_good_signature_does_not_hide_a_change(folder: Path) -> None:
    (folder.parent / "run" / "events.ndjson").write_text("[]\n")
    assert verify(folder, f"{sys.executable} {folder.parent / 'tool.py'} {{signature}} {{file}}") == 1


def test_a_manifest_made_again_after_a_change_passes_without_the_signature_and_fails_with_it(folder: Path) -> None:
    run = folder.parent / "run"
    (run / "events.ndjson").write_text("[]\n")
    write_manifest(folder, [folder / "signoff.html"], [run])
    assert kvverify(["verify-report", str(folder)]) == 0
    assert verify(folder, f"{sys.executable} {folder.parent / 'tool.py'} {{signature}} {{file}}") == 1


@pytest.mark.parametrize(
    ("command", "signature", "line"),
    [
        ("true", "sig", "does not say where the signature goes; expected one like 'ssh-keygen -Y verify"),
        ("gpg '{signature}", "sig", "No closing quotation; expected a command, such as 'ssh-keygen"),
        (
            "no-such-tool {signature}",
            "sig",
            "--verify-with no-such-tool: cannot be started (No such file or directory)",
        ),
        ("gpg {signature}", "gone", "gone: no such file; expected what the signing tool wrote for manifest.json"),
    ],
)
def test_what_cannot_be_verified_is_one_line(
    folder: Path, command: str, signature: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(folder, command, signature) == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--signature", "x"], ["--verify-with", "gpg {signature}"]])
def test_one_option_without_the_other_is_a_usage_error(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kvverify(["verify-report", str(folder), *words]) == 2
    assert "--signature and --verify-with go together" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_with_ssh_keygen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def keygen(*words: str) -> None:
        subprocess.run(["ssh-keygen", *words], cwd=folder.parent, check=True, capture_output=True)

    keygen("-q", "-t", "ed25519", "-N", "", "-f", "key")
    key = (folder.parent / "key.pub").read_text()
    (folder.parent / "allowed_signers").write_text(f"me@example.org {key}")
    keygen("-Y", "sign", "-f", "key", "-n", "kvverify", "signoff/manifest.json")
    (folder / "manifest.json.sig").rename(folder.parent / "real.sig")
    allowed = folder.parent / "allowed_signers"
    command = f"ssh-keygen -Y verify -f {allowed} -I me@example.org -n kvverify -s {{signature}}"
    assert verify(folder, command, "real.sig") == 0
    assert 'signature: Good "kvverify" signature for me@example.org' in capsys.readouterr().out
    assert verify(folder, command.replace("-n kvverify", "-n other"), "real.sig") == 1
