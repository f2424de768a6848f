"""The lm-eval package, imported so that it fetches nothing: what it needs is on this machine, or the run is refused."""

from __future__ import annotations

import importlib
import logging
import os
from importlib.metadata import version
from types import ModuleType

from kvverify.errors import EnvironmentProblem

# Read by these packages once, when they are imported. A user who sets them to 0 allows downloads, and says so.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def lm_eval_module(name: str) -> ModuleType:
    """Return module ``name`` of lm-eval, such as ``lm_eval.tasks``.

    Raises:
        EnvironmentProblem: lm-eval is not installed.
    """
    for variable, value in OFFLINE.items():
        os.environ.setdefault(variable, value)
    try:
        datasets = importlib.import_module("datasets")
        module = importlib.import_module(name)
    except ImportError as problem:
        raise EnvironmentProblem(
            f"lm-eval tasks need the package lm-eval ({problem}): pip install 'kvverify[lm-eval]'"
        ) from problem
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings tell how its own command line is used
    datasets.disable_progress_bars()
    datasets.disable_caching()  # documents that a task's own code made with random numbers must not outlive the process
    return module


def lm_eval_version() -> str:
    """Return the version of lm-eval that is installed."""
    return version("lm-eval")
