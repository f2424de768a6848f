"""From a policy file, or the name of a shipped one, to the policy."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from kvverify.errors import UsageError, nearest
from kvverify.evals_data import data_file
from kvverify.policy.model import Policy, ReleasePolicy, RolloutPolicy

_KINDS: dict[str, type[ReleasePolicy | RolloutPolicy]] = {"release": ReleasePolicy, "rollout": RolloutPolicy}
VERSION = 1


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with its name and the SHA-256 of its file."""

    name: str
    sha256: str
    policy: Policy


def load_policy(name_or_file: str) -> LoadedPolicy:
    """Return the policy of this name among the shipped ones, or in this file.

    Raises:
        UsageError: there is none, or it is not valid: which key, what it holds, what is expected.
    """
    path = data_file("policies", name_or_file, ".toml")
    data = path.read_bytes()
    where = f"policy {path.name if path.stem == name_or_file else path}"
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: no TOML ({error})") from error
    if table.get("version") != VERSION:
        raise UsageError(f"{where}: version {table.get('version')!r}; this kvverify reads version = {VERSION}")
    kind = table.get("kind")
    if kind not in _KINDS:
        raise UsageError(f"{where}: kind {kind!r}; {nearest(str(kind), _KINDS)}")
    try:
        policy = _KINDS[kind].model_validate(table)
    except ValidationError as error:
        raise UsageError(f"{where}: {_first_problem(error, _KINDS[kind])}") from None
    return LoadedPolicy(path.stem, hashlib.sha256(data).hexdigest(), policy)


def _first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors(include_url=False)[0]
    location = first["loc"]
    key = ".".join(str(part) for part in location) or "the policy"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}; {nearest(str(location[-1]), _keys(model, location[:-1]))}"
    if first["type"] == "missing":
        return f"{key} is missing"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] == "value_error" else f" got {first['input']!r};"
    return f"{key}:{given} {message[:1].lower()}{message[1:]}"


def _keys(model: type[BaseModel], path: Iterable[Any]) -> list[str]:
    """Return the keys that are valid at ``path``; numbers in it are places in an array of tables."""
    fields: Mapping[str, Any] = model.model_fields
    for part in path:
        if isinstance(part, int):
            continue
        inner = _model_in(fields[part].annotation)
        fields = inner.model_fields if inner else {}
    return list(fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as ``tuple[Model, ...]`` or ``Model | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(inner) for inner in getattr(annotation, "__args__", ()))
    return next((model for model in found if model), None)
