"""Made samples on disk, keyed by what they are made of.

A sample is kept as a receipt and not as text: how many units it was given, how many tokens that takes, and its key. Finding
these is what costs (tokenizing); the text follows from seed, corpora and units within milliseconds, and the key proves that it is the same
text. 500 samples of 128k tokens are 300 MB as text and 50 KB as receipts.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from kvverify.report.folder import RunFolder, write_atomically

FORMAT = 1
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Sample ``index``: the units that it holds, the tokens of its prompt (prefix and reserve included), its key."""

    index: int
    units: int
    tokens: int
    key: str


class Dataset:
    """The receipts of samples with one ``identity``, in ``folder``; None keeps nothing.

    JSON lines: the first tells the format, the identity and the SHA-256 of the other lines, which are [index, units, tokens, key].
    """

    def __init__(self, folder: Path | None, name: str, identity: Mapping[str, str]) -> None:
        self._identity = dict(identity)
        digest = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()
        self.file = folder / f"{name}-{digest[:16]}.jsonl" if folder is not None else None

    def load(self) -> list[Receipt]:
        """Return what is kept, nothing where there is no file; a damaged one is noted in the log and counts as none."""
        if self.file is None or not self.file.is_file():
            return []
        try:
            return self._read(self.file)
        except (OSError, ValueError) as error:
            self.note_damage(str(error))
            return []

    def save(self, receipts: Sequence[Receipt]) -> None:
        """Keep ``receipts``, in place of what was kept.

        Raises:
            EnvironmentProblem: the folder is not writable or the disk is full.
        """
        if self.file is None:
            return
        lines = "".join(f"{json.dumps(astuple(receipt))}\n" for receipt in receipts)
        head = {"format": FORMAT, "identity": self._identity, "sha256": hashlib.sha256(lines.encode()).hexdigest()}
        RunFolder(self.file.parent).make()
        write_atomically(self.file, f"{json.dumps(head, sort_keys=True)}\n{lines}")

    def note_damage(self, why: str) -> None:
        """Log that the kept samples are made anew."""
        _LOG.warning("%s is damaged (%s): its samples are made anew", self.file, why)

    def _read(self, file: Path) -> list[Receipt]:
        first, _, lines = file.read_text(encoding="utf-8").partition("\n")
        head = json.loads(first)
        if not isinstance(head, dict) or head.get("format") != FORMAT or head.get("identity") != self._identity:
            raise ValueError("it is of another format or of other samples")
        if head.get("sha256") != hashlib.sha256(lines.encode()).hexdigest():
            raise ValueError("its checksum is wrong")
        receipts = [Receipt(*json.loads(line)) for line in lines.splitlines()]
        if [r.index for r in receipts] != list(range(len(receipts))):
            raise ValueError("its samples are not numbered from 0")
        return receipts
