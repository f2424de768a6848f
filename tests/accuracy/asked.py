"""Runs of an arm as a user starts them, and servers that answer in no time: what tests of accuracy runs share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.cli.main import run
from kvverify.events import Event
from kvverify.events_accuracy import SampleAnswered
from kvverify.report.log import read_events
from tests.live.stub import Stub, serve

MODEL = "m"


class Counting:
    """A source of short prompts that :class:`Stub` answers right."""

    def samples(self, task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
        for length in task.lengths:
            for index in range(task.samples):
                own = task.options.get("long", -1) == index
                text = f"{context.seed} {task.name} {length} {index} " + ("word " * 1000 if own else "")
                yield Sample(
                    task=task.name,
                    length=length,
                    index=index,
                    prompt=text.ljust(length, "x") if task.options.get("whole") else text,
                    references=("t0",),
                    metric="contains",
                    max_tokens=4,
                    cluster=f"{index}",
                )

    def facts(self, task: TaskSpec, context: SourceContext) -> dict[str, str]:
        return {"version": "1"}


class Talking:
    """A source of conversations."""

    def samples(self, task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        for index in range(task.samples):
            yield Sample(
                task=task.name,
                length=0,
                index=index,
                messages=({"role": "user", "content": f"call f with {index}"},),
                tools=(tool,),
                references=(json.dumps({"name": "f", "arguments": {"n": 1}}),),
                metric="tool-call",
                max_tokens=4,
            )

    def facts(self, task: TaskSpec, context: SourceContext) -> dict[str, str]:
        return {}


def suite(
    folder: Path,
    source: str = f"{__name__}:Counting",
    *,
    samples: int = 6,
    lengths: str = "[64]",
    options: str = "",
    **more: str,
) -> Path:
    """Write a suite of one task."""
    file = folder / f"suite-{samples}.toml"
    head = "".join(f'{name} = "{value}"\n' for name, value in more.items())
    task = f'[[tasks]]\nsource = "{source}"\nname = "task"\nlengths = {lengths}\nsamples = {samples}\noptions = {{{options}}}\n'
    file.write_text(f'name = "tried"\nkind = "retrieval"\n{head}{task}')
    return file


@contextmanager
def stub_server(*, metrics: bool = False, name: str = MODEL, context: int = 4096, **more: Any) -> Iterator[Stub]:
    """A server that says it is vLLM and answers " t0 t1 t2 t3"; a token of a prompt is a byte."""
    models = {"data": [{"id": name, "owned_by": "vllm", "root": name, "max_model_len": context}]}
    pages = {"/v1/models": json.dumps(models), "/version": '{"version": "0.26.0"}', "/health": ""}
    stub = Stub(pages=pages, count=lambda prompt: len(prompt.encode()), **more)
    with serve(stub):
        yield stub


def dies_after(server: Stub, prompts: int) -> None:
    """Let ``server`` drop every connection once it has read so many prompts."""
    known = server.count
    assert known is not None
    left = [prompts]

    def count(prompt: str) -> int:
        left[0] -= 1
        if left[0] == 0:
            server.mode = "reset"
        return known(prompt)

    server.count = count


def accuracy_run(out: Path, urls: list[str], suite_: Path | str, *more: str) -> tuple[int, list[Event]]:
    """Run an arm in this process."""
    where = [word for url in urls for word in ("--url", url)]
    words = ["--suite", str(suite_), "--label", "tried", "--tokenizer", "bytes", "--settle", "0.01", "--out", str(out)]
    code = run(["accuracy", "run", *where, *words, *more])
    return code, read_events(out)


def answers(events: list[Event]) -> list[SampleAnswered]:
    """Return the answers, in order."""
    return [e for e in events if isinstance(e, SampleAnswered)]
