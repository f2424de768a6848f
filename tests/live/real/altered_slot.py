"""An engine for ``--engine FILE:CLASS``: llama.cpp whose slot files are altered right before they are read."""

from __future__ import annotations

import os
from pathlib import Path

from kvverify.live.engines.llamacpp import LlamaCpp

FOLDER = "KVVERIFY_SLOT_FOLDER"  # no endpoint tells it
BYTES = 8 * 1024


class AlteredSlot(LlamaCpp):
    """Flips the sign of each f16 in some KiB of the K of one layer."""

    async def restore(self, name: str) -> None:
        """Alter the file, then restore it."""
        file = Path(os.environ[FOLDER]) / name
        content = bytearray(file.read_bytes())
        start = len(content) * 2 // 9  # inside one of 30 layers; what stands between them must stay
        for place in range(start, start + BYTES, 2):
            content[place] ^= 0x80
            content[place + 1] ^= 0x80  # the file's header may be of any length: one of the two is the sign
        file.write_bytes(content)
        await super().restore(name)
