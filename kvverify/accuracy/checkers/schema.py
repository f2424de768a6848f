"""JSON schemas: checked once when questions are read, then applied to answers. References stay inside the schema."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Protocol

from kvverify.errors import EnvironmentProblem, UsageError

_LONGEST = 200  # characters of one violation


class _Validator(Protocol):
    def iter_errors(self, instance: Any) -> Any: ...


def check_schema(schema: Mapping[str, Any], where: str) -> None:
    """Refuse what is not a JSON schema.

    Raises:
        UsageError: not a schema; ``where`` begins the line.
        EnvironmentProblem: the package jsonschema is missing.
    """
    library = _library()
    try:
        library.validators.validator_for(schema, library.Draft202012Validator).check_schema(schema)
    except library.SchemaError as problem:
        raise UsageError(f"{where}: not a JSON schema: {problem.message[:_LONGEST]}") from None


def violation(schema: Mapping[str, Any], value: Any) -> str:
    """Return what of ``value`` breaks the schema most, empty where nothing does."""
    import jsonschema
    import referencing.exceptions

    try:
        worst = jsonschema.exceptions.best_match(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value))
    except RecursionError:
        return "nested too deeply for its schema"
    except referencing.exceptions.Unresolvable as problem:
        raise UsageError(f"a schema refers to {problem.ref!r}, which is not inside it") from None
    if worst is None:
        return ""
    place = "/".join(str(part) for part in worst.absolute_path)
    return f"{place or 'document'}: {worst.message}"[:_LONGEST]


@functools.lru_cache(maxsize=256)
def _validator(schema: str) -> _Validator:
    import referencing

    library, made = _library(), json.loads(schema)
    kind = library.validators.validator_for(made, library.Draft202012Validator)
    # a registry of its own: without one the package would fetch references to other hosts
    validator: _Validator = kind(made, registry=referencing.Registry())
    return validator


def _library() -> Any:
    try:
        import jsonschema
    except ImportError:
        raise EnvironmentProblem("JSON schemas need the package jsonschema: pip install 'kvverify[accuracy]'") from None
    return jsonschema
