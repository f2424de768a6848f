"""From a sample to the text that is sent: the model's template around the prompt, and the beginning of its answer.

``none``: prompt and answer prefix as they are, for base models. ``chatml``: the form of SmolLM2 and Qwen. ``model``: the chat
template of the tokenizer's own folder. ``chat``: through ``/v1/chat/completions``, where the server renders and an answer
prefix is lost; scores are then not comparable with those of the other forms. Samples that are conversations always go there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import Tokenizer
from kvverify.errors import UsageError

NONE, CHATML, MODEL, CHAT = TEMPLATES = ("none", "chatml", "model", "chat")
Render = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Template:
    """``render`` puts a user's prompt into the template, up to where the answer begins. ``identity`` names its text."""

    name: str
    render: Render
    identity: str
    start: str = ""  # the token that begins a text, as a string, where the tokenizer adds it itself

    @property
    def chat(self) -> bool:
        """Does the server render?"""
        return self.name == CHAT

    def text(self, sample: Sample) -> str:
        """Return what is sent for ``sample``. The server puts the start token before it, so the template must not."""
        return self.render(sample.prompt).removeprefix(self.start or "\0") + sample.answer_prefix

    def reserve(self, tokenizer: Tokenizer) -> int:
        """Return the tokens that the template and the start token take, with one to spare at each of its borders."""
        if self.chat:
            return 64  # the server's template is not known here
        around = self.text(_EMPTY)
        return len(tokenizer.ids(around or "a", start=True)) - (0 if around else 1) + (2 if around else 0)


_EMPTY = Sample(task="", length=0, index=0, metric="", max_tokens=1)


def template_named(name: str, folder: Path | None, tokenizer: Tokenizer) -> Template:
    """Return the template ``name``; ``folder`` is the tokenizer's, for ``model``.

    Raises:
        UsageError: no such template, or the folder has none.
    """
    if name not in TEMPLATES:
        raise UsageError(f"--template {name!r}: expected one of {', '.join(TEMPLATES)}")
    if name == CHATML:
        return Template(name, _chatml, name)
    if name != MODEL:
        return Template(name, lambda prompt: prompt, name)
    source, tokens = _of_folder(folder)
    return Template(name, _jinja(source, tokens), f"model {_short_hash(source)}", _start(tokens, tokenizer))


def _chatml(prompt: str) -> str:
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def _of_folder(folder: Path | None) -> tuple[str, dict[str, str]]:
    """Return the chat template's text and the special tokens that it may name."""
    file = folder / "tokenizer_config.json" if folder is not None else None
    if folder is None or file is None or not file.is_file():
        raise UsageError(f"--template model: no tokenizer_config.json in {folder}; give --tokenizer FOLDER, or chatml")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--template model: {file}: {error}") from error
    beside = folder / "chat_template.jinja"
    source = beside.read_text(encoding="utf-8") if beside.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if not isinstance(source, str) or not source:
        raise UsageError(f"--template model: {file} has no chat_template; expected one, or take --template chatml")
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    tokens = {name: value.get("content") if isinstance(value := config.get(name), dict) else value for name in names}
    return source, {name: str(value) for name, value in tokens.items() if value}


def _jinja(source: str, tokens: dict[str, str]) -> Render:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise UsageError(f"--template model: the template refuses this prompt: {message}")

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        compiled = environment.from_string(source)
    except TemplateError as error:
        raise UsageError(f"--template model: the chat template is no valid template: {error}") from error

    def render(prompt: str) -> str:
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        try:
            return compiled.render(messages=messages, add_generation_prompt=True, **tokens)
        except TemplateError as error:
            raise UsageError(f"--template model: the chat template cannot be rendered: {error}") from error

    return render


def _start(tokens: dict[str, str], tokenizer: Tokenizer) -> str:
    """Return the start token's text if the tokenizer puts one before every prompt: a template must not add a second."""
    adds = tokenizer.ids("a", start=True) != tokenizer.ids("a")
    return tokens.get("bos_token", "") if adds else ""


def _short_hash(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:16]
