"""A detached signature over manifest.json, verified by the user's own tool: kvverify has no cryptography but SHA-256."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

from kvverify.errors import EnvironmentProblem, UsageError

EXAMPLE = "'ssh-keygen -Y verify -f allowed_signers -I me@example.org -n kvverify -s {signature}'"


def verify_signature(data: bytes, signature: Path, command: str) -> tuple[bool, str]:
    """Run the user's tool on the manifest's text; return whether it exits 0, and the last line it printed.

    Args:
        data: the text. The tool gets it as a file for the word ``{file}``, and on its standard input, since ssh-keygen reads there.
        signature: the file for the word ``{signature}``.
        command: the tool with its arguments, split as a shell does; no shell runs it.

    Raises:
        UsageError: the command does not name the signature, or there is no such signature.
        EnvironmentProblem: the tool cannot be started.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--verify-with {command!r}: {error}; expected a command, such as {EXAMPLE}") from error
    if not any("{signature}" in word for word in words):
        raise UsageError(
            f"--verify-with {command!r}: does not say where the signature goes; expected one like {EXAMPLE}"
        )
    if not signature.is_file():
        raise UsageError(
            f"--signature {signature}: no such file; expected what the signing tool wrote for manifest.json"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "manifest.json"  # what was checked, not what may lie there by now
        file.write_bytes(data)
        filled = [w.replace("{signature}", str(signature)).replace("{file}", str(file)) for w in words]
        try:
            ended = subprocess.run(filled, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        except OSError as error:
            raise EnvironmentProblem(
                f"--verify-with {words[0]}: cannot be started ({error.strerror or error}); install it, or give its path"
            ) from error
    said = ended.stdout.decode(errors="replace").strip().splitlines()
    return ended.returncode == 0, said[-1] if said else f"exit code {ended.returncode}"
