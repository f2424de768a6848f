"""Samples by their rule, for tests of the rules."""

from __future__ import annotations

from typing import Any

from kvverify.accuracy.sample import Sample


def asked(metric: str, *references: str, details: dict[str, Any] | None = None, **rest: Any) -> Sample:
    """Return a question whose answer is scored by ``metric``."""
    values = {"prompt": "?", "max_tokens": 64, **rest}
    return Sample(task="t", length=0, index=0, metric=metric, references=references, details=details or {}, **values)
