"""Engines for ``--engine FILE:CLASS``: ExampleConnector whose files are altered after they were written and before they are read.

HBM is flushed right before each pass from disk. What is in the folder at the first flush is of no interest; what came after it
belongs to the requests under test. Digests are left out, so that the answers alone have to show it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.numpy

from kvverify.codecs.registry import slot_codec
from kvverify.live.engine import FlushFailed
from kvverify.live.engines.vllm_example import VllmExample

KEY = "kv_cache"  # [tokens, heads, K and V of one head]
HEAD_SIZE = 64


class Altered(VllmExample):
    """Alters what the requests under test have stored, once."""

    earlier: frozenset[Path] | None = None
    done = False

    async def flush(self, tier: str) -> None:
        """Flush, then alter."""
        await super().flush(tier)
        stored = self.stored()
        if self.earlier is None:
            self.earlier = stored
        elif not self.done:
            self.done = True
            self.alter(sorted(stored - self.earlier, key=lambda folder: folder.stat().st_mtime_ns))

    def stored(self) -> frozenset[Path]:
        """Return the folders of all prompts that are stored."""
        return frozenset(Path(self._folder(self.facts)).iterdir())

    async def digests(self, prompt: list[int]) -> list[str]:
        """Refuse."""
        raise FlushFailed("left out")

    def alter(self, prompts: list[Path]) -> None:
        """Alter the files in ``prompts``, a folder each, the first one that of request 0."""
        raise NotImplementedError


class Int4(Altered):
    """Every vector of all prompts goes through int4 and back."""

    def alter(self, prompts: list[Path]) -> None:
        """Rewrite all files."""
        codec = slot_codec("int4_per_token_head", HEAD_SIZE, model_dtype="fp32")
        for file in (file for prompt in prompts for file in prompt.iterdir()):
            cells = safetensors.numpy.load_file(file)[KEY]
            k, v = (np.ascontiguousarray(half, dtype=np.float32) for half in np.split(cells, 2, axis=-1))
            again = np.concatenate(codec.decode(codec.encode(k, v)), axis=-1)
            safetensors.numpy.save_file({KEY: again.astype(cells.dtype)}, file)


class SignByte(Altered):
    """One bit of one byte of one prompt: the sign of a number in layer 0, token 0, head 0."""

    bit = 0x80

    def alter(self, prompts: list[Path]) -> None:
        """Flip the bit in the last byte of the largest number, where it weighs most."""
        file = next(prompts[0].glob("*.0.*"))
        cells = safetensors.numpy.load_file(file)[KEY]
        place = int(np.abs(cells[0, 0]).argmax())
        cells.view(np.uint8).reshape(*cells.shape, cells.itemsize)[0, 0, place, -1] ^= self.bit
        safetensors.numpy.save_file({KEY: cells}, file)


class ExponentByte(SignByte):
    """The same with a bit of the exponent."""

    bit = 0x10
