"""A part of a question file, chosen by how the baseline scored on it; recorded, since it makes that baseline look better or worse than it is.

In the suite: ``options.subset = {run = "RUN_FOLDER", at_least = 0.5, at_most = 1.0}``. Scores of chosen questions regress to the mean when
they are asked again, so a baseline arm must be measured anew on the subset and never be taken from the run that chose it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvverify.accuracy.sample import Sample
from kvverify.errors import UsageError
from kvverify.events_accuracy import SampleAnswered
from kvverify.report.log import read_events


class _Option(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    run: str
    at_least: float = Field(0.0, ge=0.0, le=1.0)
    at_most: float = Field(1.0, ge=0.0, le=1.0)


@dataclass(frozen=True, slots=True)
class Subset:
    """The keys of the chosen questions, and how they were chosen in words."""

    keys: frozenset[str]
    words: str

    def __contains__(self, sample: Sample) -> bool:
        return sample.key in self.keys


def subset_of(option: Any, task: str) -> Subset | None:
    """Return the subset that a suite asks for, None where it asks for none.

    Raises:
        UsageError: the option is wrong, the run has no event log, or nothing of it lies in the range.
    """
    if option is None:
        return None
    try:
        wanted = _Option.model_validate(option)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"task {task}: subset.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    log = Path(wanted.run) / "events.ndjson"
    if not log.is_file():
        raise UsageError(
            f"task {task}: subset.run: no event log in {wanted.run}; expected the folder of an accuracy run"
        )
    answers = {e.key: e for e in read_events(log) if isinstance(e, SampleAnswered)}
    scored = {key: e.score for key, e in answers.items() if not e.error}
    keys = frozenset(key for key, score in scored.items() if wanted.at_least <= score <= wanted.at_most)
    digest = hashlib.sha256(log.read_bytes()).hexdigest()[:16]
    return Subset(keys, f"baseline score {wanted.at_least:g} to {wanted.at_most:g} in the run with log {digest}")
