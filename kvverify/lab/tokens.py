"""Tokenizers: what the lab needs of one, bytes for the default model, transformers' for a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. ``end`` holds the tokens that end an answer."""

    end: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``; an unfinished character is U+FFFD."""
        ...

    def chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids of a conversation, up to where the answer begins."""
        ...


class Bytes:
    """A token is a byte of UTF-8; 255, which UTF-8 never has, ends an answer."""

    end = frozenset({255})

    def encode(self, text: str) -> list[int]:
        """Return the bytes."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text."""
        return bytes(tokens).decode(errors="replace")

    def chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the messages below each other. No role follows the last: the model continues what was said."""
        return self.encode("\n".join(str(m.get("content", "")) for m in messages))


class FromTransformers:
    """A checkpoint's own tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end = frozenset({tokenizer.eos_token_id} - {None})

    def encode(self, text: str) -> list[int]:
        """Return the ids, special tokens added as the tokenizer wants."""
        return list(self._tokenizer(text).input_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text."""
        return str(self._tokenizer.decode(list(tokens)))

    def chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Apply the chat template."""
        template = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return list(self._tokenizer(template, add_special_tokens=False).input_ids)
