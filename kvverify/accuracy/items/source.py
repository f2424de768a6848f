"""The source "items": a task is a generator of the table, a shipped question file, or the path of the user's own.

Options of a file: ``subset`` (:mod:`kvverify.accuracy.items.subset`) and, where its metric is code, ``allow_code``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path

from kvverify.accuracy.checkers.code import check_permission
from kvverify.accuracy.items.draw import Draw, random_of
from kvverify.accuracy.items.framed import shipped_hash
from kvverify.accuracy.items.generators import GENERATORS, Generator
from kvverify.accuracy.items.lines import Line, read_lines
from kvverify.accuracy.items.subset import subset_of
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.errors import UsageError, nearest
from kvverify.evals_data import data_file, shipped

DEFAULT_SAMPLES = 200  # of a generator, which has no end of its own
_FILE_OPTIONS = {"subset", "allow_code"}


def samples(task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
    """Yield the samples of a task, length by length, by index.

    Raises:
        UsageError: no such task or option, a wrong question file, more questions asked than it has, a length that the task cannot have.
        EnvironmentProblem: the task runs code, which cannot be confined here.
    """
    generator = _generator(task)
    if generator is None:
        yield from _of_file(task, context)
        return
    _check_lengths(task, sized=generator.sized)
    _check_options(task, generator.options)
    make = generator.function()
    for length in task.lengths:
        for index in range(task.samples or DEFAULT_SAMPLES):
            yield make(_draw(task, context, length, index))


def facts(task: TaskSpec, context: SourceContext) -> dict[str, str]:
    """Return what identifies the questions: generator with its version and seed, or the file's SHA-256; options; the subset."""
    generator = _generator(task)
    options = {k: v for k, v in task.options.items() if k != "subset"}
    said = {"options": json.dumps(options, sort_keys=True)} if options else {}
    if generator is not None:
        requests = {"requests": shipped_hash(generator.file)} if generator.file else {}
        return {"generator": f"{task.name} {generator.version}", "seed": str(context.seed), **requests, **said}
    _, digest = read_lines(_path(task))
    subset = subset_of(task.options.get("subset"), task.name)
    return {"questions": digest, **({"subset": subset.words} if subset else {}), **said}


def _generator(task: TaskSpec) -> Generator | None:
    return None if Path(task.name).is_file() else GENERATORS.get(task.name)


def _path(task: TaskSpec) -> Path:
    try:
        return data_file("items", task.name, ".jsonl")
    except UsageError:
        names = [*GENERATORS, *(path.stem for path in shipped("items").glob("*.jsonl"))]
        raise UsageError(
            f"task {task.name!r} of source items: no such file, generator or shipped set; {nearest(task.name, names)}"
        ) from None


def _draw(task: TaskSpec, context: SourceContext, length: int, index: int) -> Draw:
    return Draw(
        task=task.name,
        length=length,
        index=index,
        random=random_of(context.seed, task.name, length, index),
        tokenizer=context.tokenizer,
        reserve=context.reserve,
        options=task.options,
    )


def _of_file(task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
    path = _path(task)
    _check_lengths(task, sized=False)
    _check_options(task, _FILE_OPTIONS)
    lines, _ = read_lines(path)
    subset = subset_of(task.options.get("subset"), task.name)
    made: Iterable[Sample] = (_question(task, context, path, line, i) for line, i in zip(lines, count(), strict=False))
    chosen = [sample for sample in made if subset is None or sample in subset]
    if not chosen:
        raise UsageError(
            f"task {task.name}: no question of {path.name} is in the subset: {subset.words if subset else ''}"
        )
    if task.samples > len(chosen):
        raise UsageError(
            f"task {task.name}: {task.samples} samples asked, {path.name} has {len(chosen)} questions; "
            "ask for fewer, or leave samples out for all"
        )
    yield from islice(chosen, task.samples or None)


def _question(task: TaskSpec, context: SourceContext, path: Path, line: Line, index: int) -> Sample:
    if line.metric == "code":
        check_permission(task.options, task.name)
    prompt = line.prompt + line.answer_prefix
    allowed = {"allow_code": True} if line.metric == "code" else {}
    return Sample(
        task=path.stem,
        length=0,
        index=index,
        prompt=line.prompt,
        answer_prefix=line.answer_prefix,
        messages=line.messages,
        tools=line.tools,
        references=line.references,
        metric=line.metric,
        details={**line.details, **allowed},
        max_tokens=line.max_tokens,
        stop=line.stop,
        cluster=line.cluster,
        tokens=context.tokenizer.counts([prompt])[0] + context.reserve if prompt else -1,
    )


def _check_lengths(task: TaskSpec, *, sized: bool) -> None:
    if sized and (not task.lengths or min(task.lengths) <= 0):
        raise UsageError(
            f"task {task.name} needs lengths in tokens, got {list(task.lengths)}; for example lengths = [4096]"
        )
    if not sized and tuple(task.lengths) != (0,):
        raise UsageError(f"task {task.name} has no size classes, got lengths {list(task.lengths)}; leave them out")


def _check_options(task: TaskSpec, known: Iterable[str]) -> None:
    unknown = sorted(set(task.options) - set(known))
    if unknown:
        valid = nearest(unknown[0], known) if known else "it takes none"
        raise UsageError(f"task {task.name}: no option {unknown[0]!r}; {valid}")
