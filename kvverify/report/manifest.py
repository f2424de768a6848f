"""The manifest of a sign-off: name, size and SHA-256 of every file that it rests on, beside the page and inside it.

Every byte is under some digest: a file of a run or an artefact under its own; the page, without the block that carries the
manifest, under `page`; the manifest under its last field, the digest of the text with that field empty. The text has one form
only, and the copy in the page and the file manifest.json are the same bytes. Digests show that something changed, not who did it:
whoever can change a file can make the manifest again. Against that the manifest can be signed (`detached_signature`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

import kvverify
from kvverify.errors import EnvironmentProblem, UsageError
from kvverify.report.folder import write_atomically

PAGE, MANIFEST = "signoff.html", "manifest.json"
MADE_AGAIN = frozenset(
    {"report.html", "report.md", "junit.xml"}
)  # of a run: made of its events at any time, hence no evidence
OPENED, CLOSED = b'<script type="application/json" id="manifest">\n', b"</script>\n"
_BLOCK = re.compile(re.escape(OPENED) + rb"([^<]*)" + re.escape(CLOSED))


def _relative(name: str) -> str:
    if not name or PurePosixPath(name).is_absolute() or "\0" in name:
        raise ValueError("expected a path relative to the manifest's folder")
    return name


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileDigest(_Part):
    """A file: its path relative to the folder that names it, its size, its SHA-256."""

    name: Annotated[str, AfterValidator(_relative)]
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class RunDigests(_Part):
    """A run folder, relative to the manifest's, with all files of it but the reports, which are made again from the events."""

    name: Annotated[str, AfterValidator(_relative)]
    files: tuple[FileDigest, ...] = Field(min_length=1)


class Manifest(_Part):
    """What manifest.json holds. ``page`` is the digest of the page without the manifest's block; a manifest without runs is none."""

    format: Literal["kvverify manifest"] = "kvverify manifest"
    version: Literal[1] = 1
    kvverify: str
    page: FileDigest | None = None
    artefacts: tuple[FileDigest, ...] = ()
    runs: tuple[RunDigests, ...] = Field(min_length=1)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")


def write_manifest(folder: Path, artefacts: Sequence[Path], runs: Sequence[Path]) -> Path:
    """Write ``folder``/manifest.json over the files of a sign-off and put it into the page; return its path.

    Args:
        folder: where the sign-off lies; all names are relative to it.
        artefacts: its files. One called signoff.html is the page: the manifest is put into it, in place of an earlier one.
        runs: the run folders it was made from.

    Raises:
        UsageError: no run, or a run without an event log.
        EnvironmentProblem: a file cannot be read or written.
    """
    page = next((path for path in artefacts if path.name == PAGE), None)
    others = [path for path in artefacts if path != page]
    bare = without_block(_bytes(page)) if page else b""
    manifest = Manifest(
        kvverify=kvverify.__version__,
        page=FileDigest(name=_name(page, folder), bytes=len(bare), sha256=hashlib.sha256(bare).hexdigest())
        if page
        else None,
        artefacts=tuple(digest(path, folder) for path in others),
        runs=tuple(_run(run, folder, artefacts) for run in dict.fromkeys(runs)) or _no_runs(),
    )
    text = manifest_text(manifest)
    if page:
        head, end, tail = bare.rpartition(b"</body>")
        block = OPENED + text.encode() + CLOSED
        write_atomically(page, (head + block + end + tail if end else bare + block).decode())
    target = folder / MANIFEST
    write_atomically(target, text)
    return target


def manifest_text(manifest: Manifest) -> str:
    """Return the only text that stands for ``manifest``, with its digest as the last field; it holds no ``<``, ``>`` and ``&``."""
    empty = _text(manifest.model_copy(update={"sha256": ""}))
    return _text(manifest.model_copy(update={"sha256": hashlib.sha256(empty.encode()).hexdigest()}))


def read_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in ``data``, which ``where`` names in errors; :func:`manifest_text` tells whether its bytes are as written.

    Raises:
        UsageError: this is no manifest, or one of another version.
    """
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{where}: no manifest of kvverify, version 1, or damaged ({f'{at}: ' if at else ''}{first['msg']}); expected what "
            "`kvverify report RUN... --policy NAME` wrote"
        ) from error


def block_of(page: bytes) -> bytes | None:
    """Return the manifest's text in a page; None where the page does not hold exactly one."""
    found = _BLOCK.findall(page)
    return bytes(found[0]) if len(found) == 1 else None


def without_block(page: bytes) -> bytes:
    """Return a page as it is without the manifest."""
    return _BLOCK.sub(b"", page)


def digest(path: Path, folder: Path) -> FileDigest:
    """Return the digest of a file, named relative to ``folder``; EnvironmentProblem where it cannot be read."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as error:
        raise _unreadable(path, error) from error
    return FileDigest(name=_name(path, folder), bytes=size, sha256=sha256)


def evidence(run: Path, folder: Path, artefacts: Iterable[Path]) -> list[Path]:
    """Return the files of a run folder that its digests cover: all but its reports, hidden files, and the sign-off itself.

    The sign-off in ``folder``, which has ``artefacts``, may lie in the folder of a run, or be it.
    """
    at, home = run.resolve(), folder.resolve()
    own = {path.resolve() for path in artefacts}
    found = []
    for path in sorted(run.rglob("*")):
        inner, real = path.relative_to(run), path.resolve()
        hidden = any(part.startswith(".") for part in inner.parts)
        signed_off = real in own or (real.parent == home and real.name.startswith(MANIFEST))
        nested = home != at and home.is_relative_to(at) and real.is_relative_to(home)
        if path.is_file() and not (hidden or signed_off or nested or str(inner) in MADE_AGAIN):
            found.append(path)
    return found


def _run(run: Path, folder: Path, artefacts: Sequence[Path]) -> RunDigests:
    if not (run / "events.ndjson").is_file():
        raise UsageError(f"run {run}: holds no events.ndjson; expected the folder that an earlier run printed")
    return RunDigests(
        name=_name(run, folder), files=tuple(digest(path, run) for path in evidence(run, folder, artefacts))
    )


def _no_runs() -> tuple[RunDigests, ...]:
    raise UsageError("manifest: no run; expected at least one run folder, since a sign-off rests on event logs")


def _name(path: Path, folder: Path) -> str:
    name = Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"file {name!r}: its name is not UTF-8; rename it, a manifest cannot hold it") from error
    return name


def _text(manifest: Manifest) -> str:
    text = json.dumps(manifest.model_dump(mode="json"), indent=1)
    for character in "<>&":  # so that the text can stand in a page as it is
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text + "\n"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"file {path}: cannot be read ({error.strerror or error}); make it readable, or sign off without it"
    )
