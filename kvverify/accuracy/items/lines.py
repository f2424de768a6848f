"""Question files: JSON lines, one question each, read strictly and hashed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvverify.accuracy.checkers.schema import check_schema
from kvverify.accuracy.scoring import JUDGED, RULES
from kvverify.errors import UsageError, nearest

_NEEDS = {"sql": ("setup",), "code": ("function",), "json-schema": ("schema",), "rubrics": ("rubrics",)}  # details
_WITHOUT_REFERENCES = {"refusal", "code", "json-schema", "rubrics"}
_JSON_REFERENCES = {"json-fields", "tool-call"}


class Line(BaseModel):
    """One question as its file has it. ``id`` is the user's own name for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = ""
    prompt: str = ""
    answer_prefix: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    references: tuple[str, ...] = ()
    metric: str
    details: dict[str, Any] = {}
    max_tokens: int = Field(gt=0)
    stop: tuple[str, ...] = ()
    cluster: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Line:
        if bool(self.prompt) == bool(self.messages):
            raise ValueError("expected prompt or messages, one of them")
        if self.metric not in RULES and self.metric not in JUDGED:
            raise ValueError(f"metric {self.metric!r}: no such rule; {nearest(self.metric, RULES.keys() | JUDGED)}")
        if not self.references and self.metric not in _WITHOUT_REFERENCES:
            raise ValueError(f"metric {self.metric} needs references")
        for name in _NEEDS.get(self.metric, ()):
            if not self.details.get(name):
                raise ValueError(f"metric {self.metric} needs details.{name}")
        if self.metric == "code" and not (self.details.get("cases") or self.details.get("tests")):
            raise ValueError("metric code needs details.cases or details.tests")
        if self.metric in _JSON_REFERENCES:
            for reference in self.references:
                json.loads(reference)
        if self.metric == "rubrics" and not all(isinstance(r, str) and r.strip() for r in self.details["rubrics"]):
            raise ValueError("details.rubrics: expected a list of texts")
        return self


def read_lines(path: Path) -> tuple[list[Line], str]:
    """Return the questions of a file, and the SHA-256 of it.

    Raises:
        UsageError: not readable, empty, or a line is wrong; the line's number is given.
    """
    try:
        data = path.read_bytes()
        rows = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"questions {path}: {error}") from error
    lines = [_line(path, number, row) for number, row in enumerate(rows, 1) if row.strip()]
    if not lines:
        raise UsageError(f"questions {path}: empty; expected one JSON object a line")
    return lines, hashlib.sha256(data).hexdigest()


def _line(path: Path, number: int, row: str) -> Line:
    where = f"questions {path}, line {number}"
    try:
        line = Line.model_validate_json(row)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: {f'{place}: ' if place else ''}{first['msg']}") from error
    if "schema" in line.details:
        check_schema(line.details["schema"], where)
    return line
