"""Options of a run as its event log keeps them, and as ``--resume`` reads them back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Self, get_origin, get_type_hints

from kvverify.errors import UsageError


@dataclass(frozen=True, slots=True)
class LoggedOptions:
    """Base of a frozen dataclass of options; JSON has no tuples, so they are lists in the log."""

    @classmethod
    def from_log(cls, values: Mapping[str, Any]) -> Self:
        """Return the options that :meth:`to_log` wrote; what an older version did not know yet has its default.

        Raises:
            UsageError: they are of another command or version.
        """
        fields = dataclasses.fields(cls)
        needed = {f.name for f in fields if f.default is MISSING and f.default_factory is MISSING}
        if odd := sorted((set(values) - {f.name for f in fields}) | (needed - set(values))):
            raise UsageError(f"the run to resume was made with other options ({', '.join(odd)}); start a new one")
        types = get_type_hints(cls)
        tuples = {name: tuple(v) for name, v in values.items() if get_origin(types[name]) is tuple}
        return cls(**{**values, **tuples})

    def to_log(self) -> dict[str, Any]:
        """Return the options as a JSON object for ``RunStarted.options``."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
