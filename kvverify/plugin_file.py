"""A user's plug-in in a file of its own, imported without being installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from kvverify.errors import UsageError


def import_file(path: Path) -> ModuleType:
    """Import ``path`` under a name of its own; its folder joins the import path, as when Python runs it.

    Raises:
        UsageError: it is no Python file.
    """
    name = f"_kvverify_plugin_{path.stem}"
    description = importlib.util.spec_from_file_location(name, path)
    if description is None or description.loader is None:
        raise UsageError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(description)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    description.loader.exec_module(module)
    return module
