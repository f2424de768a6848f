"""An lm-eval task with its documents, loaded the same way whatever was loaded before it, and refused where it cannot be paired."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvverify.accuracy.lm_eval.find import task_manager
from kvverify.accuracy.lm_eval.local_data import LocalFile, data_set, find_file
from kvverify.accuracy.lm_eval.options import LmEvalOptions, options_of
from kvverify.accuracy.lm_eval.package import lm_eval_module
from kvverify.accuracy.source import TaskSpec
from kvverify.errors import EnvironmentProblem, UsageError

GENERATES = "generate_until"
LIKELIHOOD = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
LOCAL_FORMATS = {"json", "csv", "parquet"}  # what a task file calls data sets that are files
PYTHON_SEED, NUMPY_SEED = 0, 1234  # lm-eval's own defaults
BINARY = {"exact_match", "acc", "acc_norm", "acc_bytes"}  # 0 or 1 for every document, by rule


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task of lm-eval. ``identity`` is a hash of all that decides its questions and scores except the documents.

    ``metric`` and ``filter`` name the score that decides. ``files`` are the data files it was read from, if it was.
    """

    name: str
    task: Any
    docs: list[dict[str, Any]]
    docs_hash: str
    options: LmEvalOptions
    identity: str
    metric: str
    filter: str
    binary: bool
    files: dict[str, LocalFile]


_LOADED: dict[str, LoadedTask] = {}  # by what was asked for
_BY_IDENTITY: dict[str, LoadedTask] = {}


def load(spec: TaskSpec, corpora: Path | None) -> LoadedTask:
    """Return the task that ``spec`` names, loaded once in a process.

    Raises:
        UsageError: no such task, or one whose answers have no score each, or that needs more than an answer to one prompt.
        EnvironmentProblem: lm-eval or the task's data are not on this machine.
    """
    options = options_of(spec)
    asked = json.dumps([spec.name, options.model_dump(), str(corpora)], sort_keys=True)
    if asked not in _LOADED:
        _LOADED[asked] = loaded = _load(spec.name, options, corpora)
        _BY_IDENTITY[loaded.identity] = loaded
    return _LOADED[asked]


def loaded_by_identity(identity: str, name: str) -> LoadedTask:
    """Return a task that was loaded in this process.

    Raises:
        UsageError: it was not.
    """
    if identity not in _BY_IDENTITY:
        raise UsageError(f"task {name} was not loaded in this process: make its samples before answers are scored")
    return _BY_IDENTITY[identity]


def _load(name: str, options: LmEvalOptions, corpora: Path | None) -> LoadedTask:
    manager = task_manager(name, options.include, corpora)
    entry = manager.task_index[name]
    _refuse(name, entry)
    files = _data_files(name, options, corpora, entry)
    overrides: dict[str, Any] = {"num_fewshot": options.shots} if options.shots is not None else {}
    if files:
        overrides["custom_dataset"] = data_set(name, files)
    with _seeded():
        task = _built(name, manager, overrides)
    task.set_fewshot_seed(options.fewshot_seed)
    docs = [_plain_row(name, row) for row in task.task_docs]
    metric, filter_ = _score(name, task, options)
    config = _config(task) | {"fewshot_seed": options.fewshot_seed, "score": [metric, filter_]}
    return LoadedTask(
        name=name,
        task=task,
        docs=docs,
        docs_hash=_digest(docs),
        options=options,
        identity=_digest(config),
        metric=metric,
        filter=filter_,
        binary=metric in BINARY if options.binary is None else options.binary,
        files=files,
    )


def _built(name: str, manager: Any, overrides: Mapping[str, Any]) -> Any:
    """Return the task; lm-eval reads its data here. A group around it is lm-eval's way to change a task's settings."""
    try:
        task = manager.load({"group": "kvverify", "task": [{"task": name, **overrides}]})["tasks"][name]
    except OSError as problem:  # of datasets and evaluate: FileNotFoundError, ConnectionError
        raise EnvironmentProblem(
            f"task {name}: its data or metrics are not on this machine ({problem}); kvverify downloads nothing: "
            "name files in the task's option `data`, or fill the cache of `datasets` beforehand"
        ) from problem
    except (ValueError, KeyError, TypeError, ImportError, RuntimeError) as problem:  # what a task file can get wrong
        raise UsageError(f"task {name}: lm-eval cannot make it: {type(problem).__name__}: {problem}") from problem
    if not isinstance(task, lm_eval_module("lm_eval.api.task").ConfigurableTask):
        raise UsageError(
            f"task {name} is a class of its own, {type(task).__name__}; expected one written as a task file"
        )
    return task


def _data_files(name: str, options: LmEvalOptions, corpora: Path | None, entry: Any) -> dict[str, LocalFile]:
    """Return the files of each split, where the task is read from files: those of the options, else of its own YAML."""
    named: Mapping[str, str] = options.data
    folders = [folder for folder in (corpora, Path()) if folder is not None]
    config = entry.cfg or {}
    if not named and config.get("dataset_path") in LOCAL_FORMATS:
        named = (config.get("dataset_kwargs") or {}).get("data_files") or {}
        folders.insert(0, entry.yaml_path.parent)
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise UsageError(
                f"task {name}: {entry.yaml_path}: data_files: expected one file for each split, got {named!r}"
            )
    if unknown := sorted(set(options.sha256) - set(named)):
        raise UsageError(f"task {name}: option sha256 names splits without a file: {', '.join(unknown)}")
    return {split: find_file(name, file, folders, options.sha256.get(split, "")) for split, file in named.items()}


def _refuse(name: str, entry: Any) -> None:
    """Refuse, before its data are read, a task that is no plain question with an answer to it."""
    config: Mapping[str, Any] = entry.cfg or {}
    if entry.kind.name in ("GROUP", "TAG"):
        members = config.get("task") or sorted(entry.tags)
        names = [member if isinstance(member, str) else str(member.get("task")) for member in members]
        raise UsageError(f"{name} is a group of tasks; name them one by one, it has {', '.join(names)}")
    drawn = config.get("generation_kwargs") or {}
    repeats = config.get("repeats", 1)
    reasons = {
        "shows images or sound": "doc_to_image" in config or "doc_to_audio" in config,
        "runs the code that the model writes": bool(config.get("unsafe_code")),
        f"asks each question {repeats} times": repeats != 1,
        "draws answers at random": bool(drawn.get("do_sample")) or float(drawn.get("temperature") or 0) > 0,
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise UsageError(f"task {name} {' and '.join(found)}; kvverify asks each question once, in text, and greedily")
    if config.get("output_type", GENERATES) not in (GENERATES, *LIKELIHOOD):
        raise UsageError(
            f"task {name}: output_type {config['output_type']!r}; valid: {', '.join((GENERATES, *LIKELIHOOD))}"
        )


def _score(name: str, task: Any, options: LmEvalOptions) -> tuple[str, str]:
    """Return the metric and the filter that decide; its mean over documents must be the task's figure."""
    metrics = lm_eval_module("lm_eval.api.metrics")
    aggregations, better = task.aggregation(), task.higher_is_better()
    means = [
        metric for metric, how in aggregations.items() if how in (metrics.mean, metrics.nanmean) and better[metric]
    ]
    if not means:
        raise UsageError(
            f"task {name}: its metrics ({', '.join(aggregations)}) are of the whole set or count errors; "
            "expected one that scores each answer and is averaged, so that arms can be paired"
        )
    filters = [ensemble.name for ensemble in task._filters]
    valid = [f"{metric},{filter_}" for metric in means for filter_ in filters]
    wanted = options.score or valid[0]
    if wanted not in valid:
        raise UsageError(f"task {name}: option score: got {wanted!r}; valid: {'; '.join(valid)}")
    metric, _, filter_ = wanted.partition(",")
    return metric, filter_


@contextmanager
def _seeded() -> Iterator[None]:
    """Seed Python's and numpy's global generators as lm-eval does: a task's own code may shuffle its documents with them."""
    import numpy as np

    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global generator is what tasks use
    random.seed(PYTHON_SEED)
    np.random.seed(NUMPY_SEED)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _plain_row(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``row`` as JSON gives it back: it is part of a sample, and must be the same wherever that is read."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(row), allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise UsageError(f"task {name}: a document holds what JSON does not know: {problem}") from problem
    return plain


def _config(task: Any) -> dict[str, Any]:
    """Return the task's settings without what names a machine's folders; the documents stand for its data."""
    config = dict(task.config.to_dict())
    for key in ("custom_dataset", "dataset_path", "dataset_name", "dataset_kwargs"):
        config.pop(key, None)
    config["metadata"] = {key: value for key, value in config.get("metadata", {}).items() if key != "config_source"}
    return config


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_source)
    return hashlib.sha256(text.encode()).hexdigest()


def _source(value: Any) -> str:
    """Return the source of a function or class that a task file names; its address would differ in every process."""
    if callable(value):
        try:
            return inspect.getsource(value)
        except (TypeError, OSError):
            return f"{value.__module__}.{value.__qualname__}"
    return str(value)
