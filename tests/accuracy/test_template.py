"""Templates: what stands around a prompt, how many tokens that takes, and one start token in all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx2")

from kvverify.accuracy.ask import questions_of
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.template import template_named
from kvverify.accuracy.tokens import Bytes
from kvverify.errors import UsageError

QWEN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


class WithStart(Bytes):
    """Bytes after a start token, as Llama's tokenizer puts one."""

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        return [*([256] if start else []), *super().ids(text)]

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [len(self.ids(text)) for text in texts]


def folder(tmp_path: Path, template: object = QWEN) -> Path:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def sample(prompt: str = "Hi", prefix: str = " It is") -> Sample:
    return Sample(task="t", length=0, index=0, prompt=prompt, answer_prefix=prefix, metric="contains", max_tokens=4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none", "Hi It is"),
        ("chatml", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n It is"),
        ("model", "<|user|>Hi\n<|assistant|> It is"),
    ],
)
def test_the_answer_prefix_follows_the_template(tmp_path: Path, name: str, text: str) -> None:
    template = template_named(name, folder(tmp_path), Bytes())
    assert template.text(sample()) == text
    question = questions_of([sample()], template, WithStart())[0]
    assert (question.text, question.tokens) == (text, len(text) + 1)
    assert template.reserve(WithStart()) >= len(text) + 1 - len("Hi It is")


def test_a_template_that_writes_the_start_token_does_not_double_it(tmp_path: Path) -> None:
    with_bos = "{{ bos_token }}" + QWEN
    assert template_named("model", folder(tmp_path, with_bos), Bytes()).text(sample()).startswith("<s><|user|>")
    template = template_named("model", folder(tmp_path, with_bos), WithStart())
    assert template.text(sample()) == "<|user|>Hi\n<|assistant|> It is"


def test_the_templates_text_is_its_identity(tmp_path: Path) -> None:
    one = template_named("model", folder(tmp_path), Bytes()).identity
    other = template_named("model", folder(tmp_path, QWEN + " "), Bytes()).identity
    assert one != other
    assert template_named("none", None, Bytes()).identity == "none"


def test_a_template_of_a_file_of_its_own_and_one_of_several(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": QWEN}]
    assert template_named("model", folder(tmp_path, several), Bytes()).text(sample()).startswith("<|user|>")
    (tmp_path / "chat_template.jinja").write_text("own {{ messages[0].content }}")
    assert template_named("model", folder(tmp_path, None), Bytes()).text(sample()) == "own Hi It is"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "has no chat_template"),
        ("{% if %}", "is no valid template"),
        ("{{ raise_exception('no system role') }}", "refuses this prompt: no system role"),
        ("{{ messages[0].content.x.y }}", "cannot be rendered"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(tmp_path: Path, template: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        template_named("model", folder(tmp_path, template), Bytes()).text(sample())


def test_unknown_templates_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected one of none, chatml, model, chat"):
        template_named("llama", None, Bytes())
    with pytest.raises(UsageError, match=r"no tokenizer_config.json in .*; give --tokenizer FOLDER"):
        template_named("model", tmp_path / "nothing", Bytes())
