"""The table of sources, each imported when a suite asks for it; own ones are named ``pkg.mod:Attr``."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from kvverify.accuracy.source import Source
from kvverify.errors import ContractError, EnvironmentProblem, UsageError, nearest

SOURCES = {  # modules
    "recall": "kvverify.accuracy.recall",
    "ruler": "kvverify.accuracy.ruler.source",
    "items": "kvverify.accuracy.items.source",
    "lm-eval": "kvverify.accuracy.lm_eval.source",
}


def source_named(name: str) -> Source:
    """Return the source ``name``.

    Raises:
        UsageError: there is none of this name.
        EnvironmentProblem: it cannot be imported, for want of a package mostly.
        ContractError: what was named is no source.
    """
    if name not in SOURCES and ":" not in name:
        raise UsageError(f"unknown source {name!r}; {nearest(name, SOURCES)}; or pkg.mod:Attr")
    module, _, attribute = SOURCES.get(name, name).partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(
            f"source {name!r} cannot be imported: {error}; accuracy runs need: pip install 'kvverify[live,accuracy]'"
        ) from error
    if inspect.isclass(found):
        found = found()
    missing = [method for method in ("samples", "facts") if not callable(getattr(found, method, None))]
    if missing:
        raise ContractError(f"source {name!r} has no {' and no '.join(missing)}; see kvverify.accuracy.source.Source")
    source: Source = found
    return source
