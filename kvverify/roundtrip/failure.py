"""Failure files: everything that is needed to see a failure again, on another machine or after an update."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvverify.errors import FailureFileError
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Program

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class FailureFile:
    """What a failure file holds that a replay needs."""

    kernel: str  # spec, as for --kernel
    fault: str  # id of a planted fault, or empty
    recipe: dict[str, Any]
    program: Program
    outcome: Outcome
    device: str = "cpu"
    ranks: int = 1  # processes that executed the program


def failure_document(
    failure: FailureFile, *, seed: int, batch: int, provenance: dict[str, Any], time_limit: float
) -> dict[str, Any]:
    """Return the JSON object that is written to ``failures/*.json``."""
    import kvverify

    return {
        "format_version": FORMAT_VERSION,
        "kvverify": kvverify.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "kernel": failure.kernel,
        "device": failure.device,
        "ranks": failure.ranks,
        "provenance": provenance,
        "fault": failure.fault,
        "seed": seed,
        "batch": batch,
        "time_limit": time_limit,
        "recipe": failure.recipe,
        "program": failure.program.to_json(),
        "outcome": asdict(failure.outcome),
    }


def read_failure(path: Path) -> FailureFile:
    """Read a failure file.

    Raises:
        FailureFileError: not there, not JSON, of an unknown format version, or incomplete. The file is left as it is.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise FailureFileError(f"failure file {path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise FailureFileError(
            f"failure file {path}: not JSON ({error}); expected what a run wrote to failures/"
        ) from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise FailureFileError(
            f"failure file {path}: format version {version!r}, this kvverify reads {FORMAT_VERSION}; "
            "use the kvverify that wrote it (its version is in the file)"
        )
    try:
        return FailureFile(
            kernel=str(data["kernel"]),
            fault=str(data["fault"]),
            recipe=dict(data["recipe"]),
            program=Program.from_json(data["program"]),
            outcome=Outcome(**data["outcome"]),
            device=str(data.get("device", "cpu")),
            ranks=int(data.get("ranks", 1)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FailureFileError(f"failure file {path}: incomplete or damaged: {error}") from error
