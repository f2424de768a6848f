"""Which block holds what: prefix hashes, the HBM pool and the DRAM tier, each with its least recently used out first."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kvverify.lab.pages import Pages
from kvverify.lab.plants import Plant

Key = bytes


@dataclass(frozen=True)
class Hit:
    """Cached blocks of a prompt, in order: first HBM blocks, then DRAM slots."""

    blocks: tuple[int, ...]
    slots: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.blocks) + len(self.slots)


class TieredCache:
    """Bookkeeping of both tiers. One request at a time: what it holds is taken out of the free list and given back."""

    def __init__(self, pages: Pages, slots: int, plant: Plant) -> None:
        self.pages = pages
        self.slots = slots
        self._plant = plant
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(pages.layout.num_blocks))
        self._block_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._slot_of: OrderedDict[Key, int] = OrderedDict()
        self._free_slots = list(range(slots))[::-1]

    @property
    def usage(self) -> float:
        """The part of HBM blocks that hold a prefix or belong to a request."""
        total = self.pages.layout.num_blocks
        return (total - len(self.unused_blocks())) / total

    def keys(self, prompt: Sequence[int], salt: str, adapter: str) -> list[Key]:
        """Return a key for each full block of ``prompt``: a chain of SHA-256 over salt, adapter and all tokens so far."""
        identity = "" if self._plant.id == "F17" else f"{len(salt)}:{salt}{adapter}"
        seed = os.urandom(8) if self._plant.id == "F19" else b""
        key, keys = hashlib.sha256(seed + identity.encode()).digest(), []
        size = self.pages.layout.block_tokens
        for start in range(0, len(prompt) - size + 1, size):
            tokens = ",".join(map(str, prompt[start : start + size]))
            key = hashlib.sha256(key + tokens.encode()).digest()
            keys.append(key)
        return keys

    def find(self, keys: Sequence[Key]) -> Hit:
        """Return the longest cached prefix: what HBM has of it, then what DRAM has."""
        blocks: list[int] = []
        for key in keys:
            if key not in self._block_of:
                break
            blocks.append(self._block_of[key])
        slots: list[int] = []
        for key in keys[len(blocks) :]:
            if key not in self._slot_of:
                break
            self._slot_of.move_to_end(key)
            slots.append(self._slot_of[key])
        return Hit(tuple(blocks), tuple(slots))

    def take(self, hit: Hit, count: int) -> list[int]:
        """Return ``count`` blocks for a request, the first being those it hits; the others lose what they held."""
        for block in hit.blocks:
            del self._free[block]
        fresh = [self._free.popitem(last=False)[0] for _ in range(count - len(hit.blocks))]
        for block in fresh:
            self._forget(block)
        return [*hit.blocks, *fresh]

    def index(self, keys: Sequence[Key], blocks: Sequence[int]) -> None:
        """Let the prefix ``keys`` be found in ``blocks``."""
        for key, block in zip(keys, blocks, strict=False):
            if key not in self._block_of:
                self._block_of[key], self._key_of[block] = block, key

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free the blocks of a request; the end of a prefix is evicted before its beginning."""
        for block in reversed(blocks):
            self._free[block] = None

    def store(self, keys: Sequence[Key], blocks: Sequence[int]) -> int:
        """Copy what DRAM has not yet of a prefix there; return the bytes copied."""
        new = [(k, b) for k, b in zip(keys, blocks, strict=False) if k not in self._slot_of][: self.slots]
        if not new:
            return 0
        slots = [self._slot_for(key) for key, _ in new]
        self.pages.store([block for _, block in new], slots)
        if self._plant.id == "F21b":
            for key, slot in zip([k for k, _ in new], slots, strict=True):
                del self._slot_of[key]
                self._free_slots.append(slot)
        return len(new) * self.pages.block_bytes

    def reset(self, *, external: bool) -> bool:
        """Forget what HBM holds, and DRAM too if ``external``; the bytes stay."""
        if self._plant.id == "flush-lies":
            return True
        for block in list(self._key_of):
            self._forget(block)
        if external and self._plant.id != "F20":
            self._free_slots = list(range(self.slots))[::-1]
            self._slot_of.clear()
        return True

    def unused_blocks(self) -> list[int]:
        """Return the HBM blocks that hold nothing which could be hit."""
        return [block for block in self._free if block not in self._key_of]

    def held_blocks(self) -> list[int]:
        """Return the HBM blocks that can be hit."""
        return list(self._key_of)

    def held_slots(self) -> list[int]:
        """Return the DRAM slots that hold a block."""
        return list(self._slot_of.values())

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]

    def _slot_for(self, key: Key) -> int:
        slot = self._free_slots.pop() if self._free_slots else self._slot_of.popitem(last=False)[1]
        self._slot_of[key] = slot
        return slot
