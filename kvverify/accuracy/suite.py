"""A suite: which tasks are asked, at which lengths, how often, and how answers are sampled. A TOML file of evals/suites or the user's."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvverify.accuracy.source import TaskSpec
from kvverify.errors import UsageError
from kvverify.evals_data import data_file

Kind = Literal["retrieval", "short", "business", "safety"]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Sampling(_File):
    temperature: float = Field(default=0.0, ge=0.0)
    seed: int = Field(default=0, ge=0)


class _Task(_File):
    source: str = Field(min_length=1)
    name: str = Field(min_length=1)
    lengths: tuple[int, ...] = (0,)
    samples: int = Field(default=0, ge=0)
    options: dict[str, Any] = {}


class _Suite(_File):
    name: str = Field(min_length=1)
    kind: Kind
    title: str = ""
    margin: float = Field(default=1.0, gt=0.0)
    template: str = "none"
    sampling: _Sampling = _Sampling()
    tasks: tuple[_Task, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What is asked. ``margin`` in points is what a comparison tests by default, ``template`` as in :mod:`kvverify.accuracy.template`."""

    name: str
    kind: str
    title: str
    margin: float
    template: str
    temperature: float
    seed: int  # of the server's sampling
    tasks: tuple[TaskSpec, ...]

    def reduced(
        self,
        *,
        samples: int | None,
        lengths: Sequence[int] = (),
        tasks: Sequence[str] = (),
        template: str | None = None,
    ) -> Suite:
        """Return the suite with other numbers of samples or lengths, or with some of its tasks alone.

        Raises:
            UsageError: a task that the suite does not have, or lengths for tasks without size classes.
        """
        known = {task.name for task in self.tasks}
        if unknown := [name for name in tasks if name not in known]:
            raise UsageError(f"suite {self.name}: no task {unknown[0]!r}; it has {', '.join(sorted(known))}")
        chosen = [task for task in self.tasks if not tasks or task.name in tasks]
        if lengths and not any(task.lengths != (0,) for task in chosen):
            raise UsageError(f"--lengths: suite {self.name} has no tasks with size classes; leave it out")
        changed = tuple(
            replace(
                task,
                samples=task.samples if samples is None else samples,
                lengths=tuple(lengths) if lengths and task.lengths != (0,) else task.lengths,
            )
            for task in chosen
        )
        return replace(self, tasks=changed, template=template or self.template)


def load_suite(name: str) -> Suite:
    """Return the suite that ``name`` means: a shipped one, or a file of the user's.

    Raises:
        UsageError: no such suite, or the file is wrong; the first mistake is named with its place.
    """
    path = data_file("suites", name, ".toml")
    found = _read(path)
    tasks = tuple(
        TaskSpec(source=t.source, name=t.name, lengths=t.lengths, samples=t.samples, options=t.options)
        for t in found.tasks
    )
    if len({(task.source, task.name) for task in tasks}) < len(tasks):
        raise UsageError(f"suite {path}: a task stands there twice; give each once, with all its lengths")
    return Suite(
        name=found.name,
        kind=found.kind,
        title=found.title,
        margin=found.margin,
        template=found.template,
        temperature=found.sampling.temperature,
        seed=found.sampling.seed,
        tasks=tasks,
    )


def _read(path: Path) -> _Suite:
    try:
        return _Suite.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top"
        raise UsageError(f"suite {path}: {where}: {first['msg']}, got {first.get('input')!r:.80}") from error
    except (OSError, ValueError) as error:  # TOML and UTF-8 errors are ValueErrors
        raise UsageError(f"suite {path}: {error}") from error
