"""Texts that samples are made of: files with a checksum, shipped or the user's own; nothing comes from the network on its own.

Shipped is a haystack in the public domain, under its own label. RULER's own essays, SQuAD and HotpotQA are the user's files
(``--corpora DIR``), since their licences forbid or burden passing them on. A score's label is the corpus's id, and
another haystack is another benchmark.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvverify.errors import UsageError, nearest
from kvverify.evals_data import shipped

SHIPPED_HAYSTACK = "emerson-essays"
ESSAYS = "paul-graham-essays"
OPTION = "--corpora DIR"
UPSTREAM = "scripts/data/synthetic/json of github.com/NVIDIA/RULER"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that the user has to bring: the names it may have, and where it comes from. ``sha256`` pins it where it is known."""

    label: str
    names: tuple[str, ...]
    origin: str
    sha256: tuple[str, ...] = ()


ESSAY_FILE = Wanted(ESSAYS, ("PaulGrahamEssays.json",), f"made by download_paulgraham_essay.py in {UPSTREAM}")
ENGLISH_WORDS = Wanted(
    "english-words",
    ("english_words.json",),
    f"in {UPSTREAM} (Git LFS)",
    ("affcd6d45fdf3cc843d585c99c97ad615094e760e6c4756b654bab6c73bc2eca",),
)
SQUAD = Wanted(
    "squad-v2-dev",
    ("squad.json", "dev-v2.0.json"),
    "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json (CC BY-SA 4.0)",
    ("80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",),
)
HOTPOTQA = Wanted(
    "hotpotqa-dev-distractor",
    ("hotpotqa.json", "hotpot_dev_distractor_v1.json"),
    "hotpot_dev_distractor_v1.json of https://hotpotqa.github.io (CC BY-SA 4.0)",
    (
        "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
        "e3da074df24e8369009918aa5cdbdd254dadcde4c63f7569d36afd6f2268caa8",  # the mirror that RULER names
    ),
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text file that was read. ``label`` and ``sha256`` (of the file's bytes) go into every identity."""

    label: str
    sha256: str
    text: str


def haystack(name: str, folder: Path | None) -> Corpus:
    """Return the haystack ``name``: one that is shipped, ``paul-graham-essays``, or a .txt or .json (key "text") of ``folder``.

    A file of ``folder`` may have NAME.toml beside it, which pins its SHA-256.

    Raises:
        UsageError: there is none, it is empty, or its checksum is another one.
    """
    if name == ESSAYS:
        path = wanted_file(ESSAY_FILE, folder)
    else:
        places = [shipped("corpora"), *([folder] if folder else [])]
        found = [place / f"{name}{suffix}" for place in places for suffix in (".txt", ".json")]
        path = next((file for file in found if file.is_file()), Path())
        if path == Path():
            raise UsageError(f"no haystack {name!r}: {nearest(name, _haystacks(folder))}; own ones by {OPTION}")
    content = path.read_bytes()
    digest = checked(path, content)
    text = _text(path, content)
    if not text.split():
        raise UsageError(f"haystack {path}: it has no words")
    return Corpus(name, digest, text)


def wanted_file(wanted: Wanted, folder: Path | None) -> Path:
    """Return the user's file.

    Raises:
        UsageError: it is not there; the line tells where to get it.
    """
    for name in wanted.names:
        if folder is not None and (folder / name).is_file():
            return folder / name
    where = f"not in {folder}" if folder is not None else f"no {OPTION} was given"
    raise UsageError(
        f"{wanted.label} is needed and {where}: expected {' or '.join(wanted.names)} there; it is {wanted.origin}"
    )


def checked(path: Path, content: bytes) -> str:
    """Return the SHA-256 of ``content``, which NAME.toml beside ``path`` may pin.

    Raises:
        UsageError: it is another one.
    """
    digest, note = hashlib.sha256(content).hexdigest(), _note(path.with_suffix(".toml"))
    if note is not None and digest != note.sha256:
        raise UsageError(f"{path}: its SHA-256 is {digest}, expected {note.sha256}: damaged or another text")
    return digest


def labelled(wanted: Wanted, path: Path, content: bytes) -> tuple[str, str]:
    """Return label and SHA-256 of a file that is known: by ``wanted`` or by NAME.toml beside it, which gives an own one a label.

    Raises:
        UsageError: it is neither.
    """
    digest = checked(path, content)
    note = _note(path.with_suffix(".toml"))
    if digest in wanted.sha256 or (not wanted.sha256 and note is None):
        return wanted.label, digest
    if note is None or not note.label or note.label == wanted.label:
        raise UsageError(
            f"{path}: its SHA-256 is {digest}, {wanted.label} has {' or '.join(wanted.sha256)}: get it again from {wanted.origin}; "
            f"a file of your own needs {path.stem}.toml beside it, with sha256 and a label of its own"
        )
    return note.label, digest


@dataclass(frozen=True, slots=True)
class _Note:
    """What a TOML file beside a corpus says of it."""

    sha256: str
    label: str


def _note(file: Path) -> _Note | None:
    if not file.is_file():
        return None
    try:
        told: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error
    pinned, label = told.get("sha256"), told.get("label", "")
    if not isinstance(pinned, str) or not re.fullmatch("[0-9a-f]{64}", pinned) or not isinstance(label, str):
        raise UsageError(f'{file}: expected sha256 = "64 hexadecimal digits", got {pinned!r}')
    return _Note(pinned, label)


def _text(path: Path, content: bytes) -> str:
    try:
        text = content.decode()
        if path.suffix == ".json":
            text = json.loads(text)["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f'haystack {path}: expected UTF-8 text, or JSON with "text": {error!r}') from error
    if not isinstance(text, str):
        raise UsageError(f'haystack {path}: expected a string under "text", got {type(text).__name__}')
    return text


def _haystacks(folder: Path | None) -> list[str]:
    own = [*folder.glob("*.txt"), *folder.glob("*.json")] if folder is not None and folder.is_dir() else []
    return sorted({ESSAYS, *(p.stem for p in shipped("corpora").glob("*.txt")), *(p.stem for p in own)})
