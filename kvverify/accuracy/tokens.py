"""The served model's tokenizer, by which prompts are sized: a folder or file, a hub id, the lab's bytes, or the server's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvverify.accuracy.source import Tokenizer
from kvverify.errors import EnvironmentProblem, UsageError

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
BYTES = "bytes"
_PROBE = "a"  # one character that every tokenizer knows


def load_tokenizer(where: str) -> Tokenizer:
    """Return the tokenizer ``where``: a folder with tokenizer.json, such a file, ``bytes`` (the lab's), a server's URL, or a hub id.

    A server counts over ``POST /tokenize``, a request for each text: exact and slow; prefer the model's folder.

    Raises:
        UsageError: nothing of this name is found, or what is found is no tokenizer.
        EnvironmentProblem: the package ``tokenizers`` is missing, or the hub cannot be reached.
        ServerProblem: the server does not tokenize.
    """
    if where == BYTES:
        return Bytes()
    if where.startswith(("http://", "https://")):
        from kvverify.accuracy.served_tokens import Served

        return Served(where)
    path = Path(where).expanduser()
    if path.is_file():
        return FromFile(path)
    if path.is_dir():
        return FromFile(_in_folder(path))
    if _looks_like_hub_id(where):
        return FromFile(_from_hub(where))
    raise UsageError(
        f"no tokenizer {where!r}: expected a folder with {FILE}, such a file, a hub id (owner/name), the URL of a server, "
        f"or {BYTES!r} for the lab's default model"
    )


class Bytes:
    """A token is a byte of UTF-8, as in the lab's default model; nothing is put at the start of a prompt."""

    identity = BYTES

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        """Return the bytes."""
        return list(text.encode())

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of bytes of each text."""
        return [len(text) if text.isascii() else len(text.encode()) for text in texts]


class FromFile:
    """A tokenizer.json, read by the ``tokenizers`` package.

    ``start_ids`` is what stands at the start of a prompt: by the file's post-processor, unless the tokenizer_config.json beside
    it says otherwise. Truncation and padding that a file may ask for are switched off. ``identity`` is the SHA-256 of the
    file and of ``start_ids``.

    Raises:
        UsageError: the file is no tokenizer.
        EnvironmentProblem: the package is missing.
    """

    def __init__(self, file: Path) -> None:
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError as error:
            raise EnvironmentProblem(
                f"reading {file} needs the package tokenizers: pip install 'kvverify[accuracy]'"
            ) from error
        try:
            content = file.read_bytes()
            self._fast = Fast.from_str(content.decode())
        except OSError as error:
            raise UsageError(f"tokenizer {file}: {error.strerror}") from error
        except Exception as error:  # the package raises bare exceptions, and ValueError on bytes that are no UTF-8
            message = f"{file} is no tokenizer of the tokenizers package: {str(error)[:120]}"
            raise UsageError(message) from error
        self._fast.no_truncation()
        self._fast.no_padding()
        self.start_ids = self._start(_config(file.with_name(CONFIG)))
        self.identity = hashlib.sha256(content + json.dumps(self.start_ids).encode()).hexdigest()

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        """Return the ids of ``text``, after the start's where asked for."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return [*self.start_ids, *ids] if start else ids

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text; many texts in one call use all cores."""
        return [len(e) for e in self._fast.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _start(self, config: dict[str, Any]) -> list[int]:
        bare: list[int] = self._fast.encode(_PROBE, add_special_tokens=False).ids
        processed: list[int] = self._fast.encode(_PROBE, add_special_tokens=True).ids
        before = next((n for n in range(len(processed)) if processed[n : n + len(bare)] == bare), 0)
        wanted = config.get("add_bos_token")
        if wanted is False:
            return []
        token = config.get("bos_token")
        name = token.get("content") if isinstance(token, dict) else token
        number = self._fast.token_to_id(name) if isinstance(name, str) else None
        return [number] if wanted is True and not before and number is not None else processed[:before]


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: expected the JSON object of a tokenizer's settings: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{file}: expected a JSON object, got {type(config).__name__}")
    return config


def _in_folder(folder: Path) -> Path:
    if (folder / FILE).is_file():
        return folder / FILE
    found = ", ".join(sorted(p.name for p in folder.glob("*token*"))) or "no file of a tokenizer"
    raise UsageError(
        f"no tokenizer in {folder}: expected {FILE}, found {found}; "
        f"AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER) of transformers writes one"
    )


def _looks_like_hub_id(where: str) -> bool:
    owner, slash, name = where.partition("/")
    return bool(slash and owner and name) and "/" not in name and not where.startswith((".", "~")) and " " not in where


def _from_hub(name: str) -> Path:
    """Return the hub's tokenizer.json in the local cache, with its tokenizer_config.json beside it where there is one."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise EnvironmentProblem(
            f"the hub id {name!r} needs the package huggingface-hub: pip install 'kvverify[accuracy]', or give a folder"
        ) from error
    offline = f"no folder {name!r} here, and the hub did not answer for it: give the model's folder with {FILE} (--tokenizer FOLDER)"
    try:
        file = Path(hf_hub_download(name, FILE))
    except LocalEntryNotFoundError as error:
        raise EnvironmentProblem(offline) from error
    except EntryNotFoundError as error:
        raise UsageError(f"the hub's {name} has no {FILE}; {_first_line(error)}") from error
    except HfHubHTTPError as error:
        raise UsageError(f"no folder {name!r} here, and the hub refuses it: {_first_line(error)}") from error
    except OSError as error:  # no connection at all
        raise EnvironmentProblem(offline) from error
    try:
        hf_hub_download(name, CONFIG)
    except (EntryNotFoundError, OSError):
        return file
    return file


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
