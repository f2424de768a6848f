"""What RULER's tests are made with: trained tokenizers of four kinds, stand-ins for the question sets, short ways to samples."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from kvverify.accuracy.corpora import SHIPPED_HAYSTACK, haystack
from kvverify.accuracy.ruler import source
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.accuracy.tokens import Bytes, FromFile

KINDS = ("digits", "llama3", "llama2", "joined")
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@cache
def tokenizer(kind: str) -> FromFile:
    """Return a BPE of 700 tokens: digits apart as SmolLM2, Llama 3's expression with a BOS, Llama 2's spaces, or words joined."""
    made: Any = Tokenizer(models.BPE(byte_fallback=kind == "llama2"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "digits")
    before_of: dict[str, Callable[[], Any]] = {
        "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
        "llama3": lambda: pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
        "llama2": pre_tokenizers.Metaspace,
        "joined": lambda: pre_tokenizers.Split(Regex(r"[^.\n]+|[.\n]"), "isolated"),  # tokens reach over spaces
    }
    before = before_of[kind]()
    special = [f"<0x{n:02X}>" for n in range(256)] if kind == "llama2" else []
    made.pre_tokenizer = before if kind == "llama2" else pre_tokenizers.Sequence([before, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=700 + len(special),
        initial_alphabet=[] if kind == "llama2" else pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", *special],
        show_progress=False,
    )
    text = haystack(SHIPPED_HAYSTACK, None).text[:120_000]
    made.train_from_iterator([" ".join(text.split())], trainer)
    if kind == "llama2":  # as its tokenizer.json has it: the whole text is one piece
        made.pre_tokenizer = None
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.ByteFallback()
    if kind in ("llama3", "llama2"):
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    file = Path(mkdtemp()) / "tokenizer.json"
    made.save(str(file))
    return FromFile(file)


def write_corpus(folder: Path, name: str, data: Any, label: str) -> Path:
    """Write a JSON file of the user's, with the TOML that names and pins it."""
    content = json.dumps(data).encode()
    (folder / f"{name}.json").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (folder / f"{name}.toml").write_text(f'label = "{label}"\nsha256 = "{digest}"\n')
    return folder / f"{name}.json"


def squad_stand_in(articles: int = 4, paragraphs: int = 6, words: int = 20) -> dict[str, Any]:
    """Return articles in SQuAD v2's form: two answerable questions and an impossible one for each paragraph."""
    rng = random.Random(3)
    text = haystack(SHIPPED_HAYSTACK, None).text.split()

    def paragraph(article: int, number: int) -> dict[str, Any]:
        first = rng.randrange(len(text) - words)
        secret = f"secret{article}x{number}"
        asked = [
            {
                "question": f"What is {n} of {article}.{number}?",
                "is_impossible": n == 2,
                "answers": [{"text": secret}] * 2,
            }
            for n in range(3)
        ]
        return {"context": f"{' '.join(text[first : first + words])} {secret}", "qas": asked}

    made = [
        {"title": f"Article {a}", "paragraphs": [paragraph(a, p) for p in range(paragraphs)]} for a in range(articles)
    ]
    return {"version": "v2.0", "data": made}


def hotpotqa_stand_in(questions: int = 20) -> list[dict[str, Any]]:
    """Return questions in HotpotQA's form, with ten short documents each."""
    made = []
    for q in range(questions):
        context = [[f"Title {q} {d}", [f"Sentence one of {q}.", f" It holds fact{q}x{d}."]] for d in range(10)]
        facts = [[f"Title {q} 3", 0], [f"Title {q} 1", 1]]
        made.append(
            {"question": f"Which is {q}?", "answer": f"fact{q}x3", "context": context, "supporting_facts": facts}
        )
    return made


def context(
    tokens: Any = None, *, seed: int = 1, reserve: int = 1, corpora: Path | None = None, cache: Path | None = None
) -> SourceContext:
    """Return a context; bytes are the tokens unless told otherwise."""
    return SourceContext(tokenizer=tokens or Bytes(), seed=seed, reserve=reserve, corpora=corpora, cache=cache)


def spec(name: str, *lengths: int, samples: int = 3, options: Mapping[str, Any] | None = None) -> TaskSpec:
    """Return a task."""
    return TaskSpec(source="ruler", name=name, lengths=lengths, samples=samples, options=options or {})


def made(
    name: str, length: int, within: SourceContext | None = None, *, samples: int = 3, **options: Any
) -> list[Sample]:
    """Return samples of one task and length."""
    return list(source.samples(spec(name, length, samples=samples, options=options), within or context()))
