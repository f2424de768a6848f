"""Measure how long RULER's samples take to make; exit 1 where a bar is missed.

    nox -s bench                                        after all else, at 32k
    python -m bench.ruler [--tokenizer FOLDER] [--lengths 32768,131072] [--samples 500] [--tasks vt,cwe]

Bars: 13 tasks of 500 samples at 32k in two minutes, at 128k in ten, on 2 cores. With other tasks or samples there is a time and no bar.
Nothing is kept from one run to the next. Without --tokenizer a BPE of 8,192 tokens is trained on the shipped haystack,
with the pre-tokenizer of SmolLM2. SQuAD and HotpotQA are replaced by documents of like number and length cut from that text.
Beside the wall time stands CPU time: on a machine that does other work it is what tells. Prints a table, and one JSON
document as the last line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.run import Measure, row
from kvverify.accuracy.corpora import SHIPPED_HAYSTACK, haystack
from kvverify.accuracy.ruler import source
from kvverify.accuracy.ruler.tasks import TASKS
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.accuracy.suite import load_suite
from kvverify.accuracy.tokens import load_tokenizer

SAMPLES = 500
BARS = {32_768: 120.0, 131_072: 600.0}  # seconds for all tasks with 500 samples each
VOCABULARY = 8192
SUITE = "ruler-32k"  # whose options of the tasks are taken: those of all lengths are the same
SEED = 1


def main() -> int:
    """Measure and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokenizer", default="", help="folder with a tokenizer.json")
    parser.add_argument("--lengths", default="32768,131072")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parser.parse_args()
    measures = []
    with TemporaryDirectory() as folder:
        where = options.tokenizer or str(train(Path(folder)))
        write_questions(Path(folder))
        for length in map(int, options.lengths.split(",")):
            for measure in measured(where, Path(folder), length, options.tasks.split(","), options.samples):
                measures.append(measure)
                print(row(measure), flush=True)
    missed = [m.name for m in measures if m.ok is False]
    document = {"cpus": os.cpu_count(), "measures": [{**asdict(m), "ok": m.ok} for m in measures], "missed": missed}
    print(json.dumps(document))
    return 1 if missed else 0


def measured(tokenizer: str, corpora: Path, length: int, tasks: list[str], many: int) -> Iterator[Measure]:
    """Make the samples of every task, and compare the sum with the bar where it is for so many."""
    total, cpu = 0.0, 0.0
    options = {task.name: task.options for task in load_suite(SUITE).tasks}
    for name in tasks:
        context = SourceContext(tokenizer=load_tokenizer(tokenizer), seed=SEED, reserve=1, corpora=corpora)
        spec = TaskSpec(source="ruler", name=name, lengths=(length,), samples=many, options=options.get(name, {}))
        wall_before, cpu_before = time.perf_counter(), time.process_time()
        shares = [(s.tokens + s.max_tokens) / length for s in source.samples(spec, context)]
        wall, used = time.perf_counter() - wall_before, time.process_time() - cpu_before
        total, cpu = total + wall, cpu + used
        note = f"CPU {used:.1f} s; {100 * min(shares):.1f} to {100 * max(shares):.1f} % of the length"
        yield Measure(f"{name}, {len(shares)} samples at {length}", wall, "s", note=note)
    bar = BARS.get(length) if many == SAMPLES and tasks == list(TASKS) else None
    name = f"{len(tasks)} tasks, {many} samples each at {length}"
    yield Measure(name, total, "s", bar, at_least=False, note=f"CPU {cpu:.1f} s; {os.cpu_count()} cores")


def train(folder: Path) -> Path:
    """Return a byte-level BPE of the shipped haystack, digits apart as in SmolLM2."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([haystack(SHIPPED_HAYSTACK, None).text], trainer)
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def write_questions(folder: Path) -> None:
    """Write stand-ins for both question sets: 35 articles of 34 paragraphs; 2,000 questions of 10 documents."""
    words, rng = haystack(SHIPPED_HAYSTACK, None).text.split(), random.Random(SEED)

    def cut(least: int, most: int) -> str:
        first = rng.randrange(len(words) - most)
        return " ".join(words[first : first + rng.randint(least, most)])

    def asked(paragraph: str) -> list[dict[str, Any]]:
        texts = [paragraph.split()[n] for n in range(2)]
        return [{"question": f"Which word is {t}?", "is_impossible": False, "answers": [{"text": t}]} for t in texts]

    articles = []
    for n in range(35):
        contexts = [f"{n}.{k} {cut(60, 220)}" for k in range(34)]
        articles.append({"title": f"Article {n}", "paragraphs": [{"context": c, "qas": asked(c)} for c in contexts]})
    questions = []
    for n in range(2000):
        context = [[f"Title {n} {k}", [cut(15, 40), f" {cut(30, 90)}"]] for k in range(10)]
        facts = [[context[0][0], 0], [context[1][0], 0]]
        questions.append({"question": f"Who is {n}?", "answer": "self", "context": context, "supporting_facts": facts})
    for name, data in (("squad", {"data": articles}), ("hotpotqa", questions)):
        content = json.dumps(data).encode()
        (folder / f"{name}.json").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        (folder / f"{name}.toml").write_text(f'label = "{name}-stand-in"\nsha256 = "{digest}"\n')


if __name__ == "__main__":
    raise SystemExit(main())
