"""Where a task's YAML is: in the user's folder, among those shipped in evals/lm_eval, or in lm-eval itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvverify.accuracy.lm_eval.package import lm_eval_module
from kvverify.errors import UsageError, nearest
from kvverify.evals_data import shipped


def task_manager(name: str, include: str, corpora: Path | None) -> Any:
    """Return lm-eval's task manager over the first folder that has task ``name``: the user's own, the shipped, or lm-eval's.

    The user's is ``include``, or else lm_eval/ in the folder of ``corpora``.
    lm-eval would read all its 14,000 YAML files first, which takes some seconds; the folder that names the task is enough
    for nearly all, and where none does, all are read.

    Raises:
        UsageError: no folder has it; the nearest names are given.
    """
    own = Path(include) if include else None
    if own is not None and not own.is_dir():
        raise UsageError(f"task {name}: include: {include} is no folder; expected one that holds lm-eval task files")
    if own is None and corpora is not None and (corpora / "lm_eval").is_dir():
        own = corpora / "lm_eval"
    ours = [folder for folder in (own, shipped("lm_eval")) if folder is not None]
    for folder in ours:
        if _named_in(folder, name):
            return _indexed(name, [folder])
    theirs = Path(str(lm_eval_module("lm_eval.tasks").__file__)).parent
    if (file := _named_in(theirs, name)) is not None:
        return _indexed(name, [file.parent])
    return _indexed(name, ours[::-1], all_of_lm_eval=True)


def _indexed(name: str, folders: Sequence[Path], *, all_of_lm_eval: bool = False) -> Any:
    manager = lm_eval_module("lm_eval.tasks").TaskManager(
        include_path=[str(folder) for folder in folders], include_defaults=all_of_lm_eval
    )
    if name in manager.task_index:
        return manager
    if not all_of_lm_eval:
        raise UsageError(f"task {name}: a file in {folders[0]} names it, but lm-eval cannot read that file as a task")
    near = nearest(name, manager.task_index).partition("valid:")[0].strip() or "see `lm-eval ls tasks`"
    raise UsageError(
        f"no lm-eval task {name!r}, neither in {', '.join(map(str, folders))} nor in lm-eval itself; {near}"
    )


def _named_in(folder: Path, name: str) -> Path | None:
    """Return the YAML file under ``folder`` that defines task or group ``name``, if one says so on a line of its own."""
    line = re.compile(rf"""^["']?(task|group)["']?\s*:\s*["']?{re.escape(name)}["']?\s*(#.*)?$""", re.MULTILINE)
    quick = name.encode()
    for file in sorted(folder.rglob("*.yaml")):
        data = file.read_bytes()
        if quick in data and line.search(data.decode("utf-8", "replace")):
            return file
    return None
