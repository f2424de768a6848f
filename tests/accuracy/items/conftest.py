"""Question files and generators need the package jsonschema, of the extra accuracy."""

from __future__ import annotations

import importlib.util

import pytest

from kvverify.accuracy.checkers.code import ALLOW_VARIABLE

collect_ignore_glob = [] if importlib.util.find_spec("jsonschema") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _code_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "1")
