"""The events a run emits, and the verdict computed from them.

Events are past-tense facts. They are written to events.ndjson one JSON object a line, in order, and everything else (console,
JUnit, Markdown, HTML, exit code) is made from them. A verdict is never read back: :func:`verdict_of` computes it each time.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class Verdict(enum.StrEnum):
    """Outcome of a check, an event or a whole run."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"


EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.ERROR: 2, Verdict.INCONCLUSIVE: 3}
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. ``at`` is seconds since the epoch, set by the writer."""

    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A command that runs checks began, or began again after an interruption (``resumed``)."""

    command: str
    version: str
    seed: int
    options: dict[str, Any]
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProbed(Event):
    """A requested kernel was looked for. ``available`` False means that it did not run, for ``reason``."""

    kernel: str
    available: bool
    reason: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignStarted(Event):
    """One kernel's campaign began: which layouts it will meet and which it refused, with its reasons.

    ``layouts`` maps layout name to KV formats; ``refused`` maps layout name to reason.
    """

    kernel: str
    layouts: dict[str, list[str]]
    refused: dict[str, str]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished(Event):
    """All sequences of one batch ran (those before a failure, where one failed).

    ``steps`` counts executed steps by kind, ``formats`` the sequences by KV format, ``lengths`` the sequences by number of
    steps, ``compared_bytes`` every byte that was compared and ``moved_bytes`` those that a kernel was asked to move.
    """

    batch: int
    kernel: str
    layout: str
    order: str
    sequences: int
    steps: dict[str, int]
    formats: dict[str, int]
    lengths: dict[str, int]
    compared_bytes: int
    moved_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFound(Event):
    """A kernel broke a property: ``kind`` is wrong-bytes, raised, hung, crashed, early-return or contract.

    ``step`` is the index of the step in the shrunk sequence, ``path`` the failure file inside the run folder.
    """

    batch: int
    kernel: str
    layout: str
    kind: str
    step: int
    headline: str
    details: list[str]
    path: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlanted(Event):
    """A planted fault was looked for by one kernel's campaign: ``outcome`` is killed, survived or n/a.

    ``by`` says what killed it (the kind of the failure), ``examples`` and ``seconds`` how long that took.
    """

    fault: str
    name: str
    kernel: str
    outcome: str
    reason: str = ""
    by: str = ""
    headline: str = ""
    examples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemMet(Event):
    """Something of ours or of the environment went wrong; the run cannot be called a pass."""

    where: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The run came to its end. ``interrupted`` is True after Ctrl-C."""

    seconds: float
    interrupted: bool = False


_TYPES: dict[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        RunStarted,
        KernelProbed,
        CampaignStarted,
        BatchFinished,
        FailureFound,
        FaultPlanted,
        ProblemMet,
        RunFinished,
    )
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
    if not isinstance(value, _JSON_TYPES[outer]):
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


def verdict_of(events: Iterable[Event]) -> Verdict:
    """Compute the verdict of a run from its raw events.

    FAIL beats ERROR beats INCONCLUSIVE beats PASS. A run is INCONCLUSIVE when no sequence was executed, when a requested kernel
    did not run, or when the log has no end. A planted fault that survives is a FAIL of the checker.
    """
    seen = list(events)
    finished = any(isinstance(e, RunFinished) for e in seen)
    if any(isinstance(e, FailureFound) for e in seen):
        return Verdict.FAIL
    if any(isinstance(e, FaultPlanted) and e.outcome == "survived" for e in seen):
        return Verdict.FAIL
    if any(isinstance(e, ProblemMet) for e in seen):
        return Verdict.ERROR
    ran = {e.kernel for e in seen if isinstance(e, BatchFinished) and e.sequences > 0}
    wanted = {e.kernel for e in seen if isinstance(e, KernelProbed)}
    killed = any(isinstance(e, FaultPlanted) and e.outcome == "killed" for e in seen)
    if not finished or not (ran or killed) or wanted - ran:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS
