"""Events to JSON objects and back: what stands in one line of the event log."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

from kvverify import events, events_accuracy
from kvverify.events import Event

_TYPES: dict[str, type[Event]] = {
    name: cls
    for module in (events, events_accuracy)
    for name, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, Event) and cls is not Event
}


def to_json(event: Event) -> dict[str, Any]:
    """Return ``event`` as a JSON object whose first key, ``event``, names its type."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


def from_json(data: dict[str, Any]) -> Event:
    """Return the event that :func:`to_json` made ``data`` from.

    Raises:
        ValueError: unknown event type, keys that do not belong to it, or a value of the wrong type.
    """
    values = dict(data)
    name = values.pop("event", None)
    if name not in _TYPES:
        raise ValueError(f"unknown event {name!r}")
    try:
        event = _TYPES[name](**values)
    except TypeError as error:
        raise ValueError(f"event {name}: {error}") from error
    for known in dataclasses.fields(event):
        value = getattr(event, known.name)
        if not _has_type(value, str(known.type)):
            raise ValueError(f"event {name}: {known.name} is {type(value).__name__}, expected {known.type}")
    return event


def _has_type(value: Any, annotation: str) -> bool:
    """Does a value out of JSON suit the ``annotation`` of an event's field, one level of contents included?"""
    outer, _, inner = annotation.removesuffix("]").partition("[")
    if outer == "Any":
        return True
    if outer in ("int", "float") and isinstance(value, bool):
        return False
    if not isinstance(value, _JSON_TYPES[outer]) or (isinstance(value, float) and not math.isfinite(value)):
        return False
    if isinstance(value, dict):
        return all(_has_type(v, inner.partition(", ")[2]) for v in value.values())
    return not isinstance(value, list) or all(_has_type(v, inner) for v in value)


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "bool": bool,
    "int": int,
    "float": (int, float),
    "list": list,
    "dict": dict,
}
