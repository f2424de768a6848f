"""Tests against real servers run in their own session, `nox -s live`, which sets KVVERIFY_LIVE and KVVERIFY_LIVE_MODEL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

collect_ignore_glob = [] if "KVVERIFY_LIVE" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def runs() -> Path:
    """The folder for logs of servers and run folders."""
    folder = Path(os.environ["KVVERIFY_LIVE"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def model() -> Path:
    """The checkpoint that is served."""
    return Path(os.environ["KVVERIFY_LIVE_MODEL"])
