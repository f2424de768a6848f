"""Whether a sign-off and everything it rests on are, byte for byte, what its manifest says: a list of findings, empty if so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvverify.errors import UsageError
from kvverify.events import Verdict
from kvverify.report.manifest import (
    MANIFEST,
    PAGE,
    FileDigest,
    Manifest,
    RunDigests,
    block_of,
    digest,
    evidence,
    manifest_text,
    read_manifest,
    without_block,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that is not as signed: FAIL where it was changed, added or is damaged, INCONCLUSIVE where it is not there."""

    verdict: Verdict
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A manifest held against the files. ``data`` is its text, which a signature covers."""

    manifest: Manifest
    data: bytes
    findings: list[Finding]

    @property
    def files(self) -> int:
        """How many files the manifest names."""
        return (
            (self.manifest.page is not None)
            + len(self.manifest.artefacts)
            + sum(len(run.files) for run in self.manifest.runs)
        )

    @property
    def bytes(self) -> int:
        """How many bytes they have."""
        named = [*self.manifest.artefacts, *(file for run in self.manifest.runs for file in run.files)]
        return sum(file.bytes for file in named) + (self.manifest.page.bytes if self.manifest.page else 0)


def check_manifest(target: Path) -> Checked:
    """Hold a sign-off against its manifest.

    Args:
        target: signoff.html, manifest.json, or the folder that holds them.

    Raises:
        UsageError: there is no manifest in ``target``, or it cannot be read.
        EnvironmentProblem: a file that the manifest names cannot be read.
    """
    folder = target if target.is_dir() else target.parent
    source = _source(target)
    data = _manifest_in(source)
    manifest = read_manifest(data, str(source))
    own = manifest_text(manifest).encode() == data
    findings = [] if own else [_changed(source.name, "the manifest's own digest does not fit its text")]
    findings += _copies(folder, source, manifest, data)
    for file in manifest.artefacts:
        findings += _file(file, folder, file.name)
    for run in manifest.runs:
        findings += _run(run, folder, manifest)
    return Checked(manifest, data, findings)


def _source(target: Path) -> Path:
    """Return the file whose manifest counts: ``target``, or of a folder manifest.json before the page."""
    if not target.is_dir():
        return target
    held = [target / name for name in (MANIFEST, PAGE) if (target / name).is_file()]
    if not held:
        raise UsageError(f"{target}: holds neither {MANIFEST} nor {PAGE}; expected the folder of a sign-off")
    return held[0]


def _manifest_in(source: Path) -> bytes:
    try:
        data = source.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{source}: cannot be read ({error.strerror or error}); expected {PAGE}, {MANIFEST} or their folder"
        ) from error
    if not _is_page(source):
        return data
    block = block_of(data)
    if block is None:
        raise UsageError(
            f"{source}: holds no manifest, or the element that carries it was changed; "
            "expected a page of `kvverify report --policy`"
        )
    return block


def _is_page(path: Path) -> bool:
    return path.suffix == Path(PAGE).suffix


def _copies(folder: Path, source: Path, manifest: Manifest, data: bytes) -> Iterator[Finding]:
    """Check manifest.json and the page, which hold the same manifest. The page is ``source`` where that is one, whatever its name."""
    beside = folder / MANIFEST
    if not beside.is_file():
        yield _missing(MANIFEST)
    elif beside.read_bytes() != data:
        yield _changed(MANIFEST, f"not the manifest in {source.name}")
    if manifest.page is None:
        if _is_page(source):
            yield _changed(source.name, "its manifest names no page")
        return
    page = source if _is_page(source) else folder / manifest.page.name
    shown = page.name if page == source else manifest.page.name
    if not page.is_file():
        yield _missing(shown)
        return
    text = page.read_bytes()
    if block_of(text) != data:
        yield _changed(shown, f"the manifest in it is not the one in {source.name}")
    bare = without_block(text)
    if hashlib.sha256(bare).hexdigest() != manifest.page.sha256:
        yield _differs(shown, manifest.page, len(bare))


def _file(wanted: FileDigest, folder: Path, shown: str) -> Iterator[Finding]:
    path = folder / wanted.name
    if not path.is_file():
        yield _missing(shown)
        return
    found = digest(path, folder)
    if (found.bytes, found.sha256) != (wanted.bytes, wanted.sha256):
        yield _differs(shown, wanted, found.bytes)


def _run(run: RunDigests, folder: Path, manifest: Manifest) -> Iterator[Finding]:
    where = folder / run.name
    for file in run.files:
        yield from _file(file, where, f"{run.name}/{file.name}")
    named = [folder / file.name for file in (manifest.page, *manifest.artefacts) if file]
    known = {file.name for file in run.files}
    for path in evidence(where, folder, named):
        if (name := path.relative_to(where).as_posix()) not in known:
            yield Finding(Verdict.FAIL, f"{run.name}/{name}", "added: the manifest does not name it")


def _differs(name: str, wanted: FileDigest, size: int) -> Finding:
    sizes = f"{size:,} bytes, expected {wanted.bytes:,}" if size != wanted.bytes else f"{size:,} bytes as expected"
    return _changed(name, f"{sizes}; SHA-256 is not {wanted.sha256[:16]}…")


def _changed(name: str, how: str) -> Finding:
    return Finding(Verdict.FAIL, name, f"changed: {how}")


def _missing(name: str) -> Finding:
    return Finding(Verdict.INCONCLUSIVE, name, "not there: nothing can be said of it")
