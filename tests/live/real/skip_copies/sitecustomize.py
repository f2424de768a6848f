"""For PYTHONPATH of an LMCache server: copies to the engine are skipped, and everything else, counters included, goes on.

This holds while the file that ``KVVERIFY_SKIPPED`` names exists. Each skipped copy adds a line to it, so that a test knows that the
patch was at work.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PATCHED = "lmcache.v1.multiprocess.modules.lmcache_driven_transfer"


class SkipCopies(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the one module as everybody else does, and replaces its copy function after it was executed."""

    loader: importlib.abc.Loader

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the real module's spec, with this loader."""
        if name != PATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        self.loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Execute the real module, then patch it."""
        self.loader.exec_module(module)
        real = module.transfer_kv_per_object_group
        to_engine = module.lmcache_native.TransferDirection.H2D

        def transfer(*arguments: Any, **options: Any) -> Any:
            skipped = os.environ["KVVERIFY_SKIPPED"]
            if options["direction"] != to_engine or not os.path.exists(skipped):  # noqa: PTH110 -- no more imports
                return real(*arguments, **options)
            with open(skipped, "a") as file:  # noqa: PTH123
                file.write("skipped\n")
            return None

        module.transfer_kv_per_object_group = transfer  # type: ignore[attr-defined]


sys.meta_path.insert(0, SkipCopies())
