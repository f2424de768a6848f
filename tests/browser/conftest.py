"""A real Chromium for the tests of pages. `nox -s browser` runs them; elsewhere they are not collected, and nothing here ever skips."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.devtools import Browser
from tests.browser.pages import PAGES

collect_ignore_glob = [] if "KVVERIFY_CHROMIUM" in os.environ else ["test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, metavar="DIR", help="Keep the screenshots there.")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running browser, whose binary KVVERIFY_CHROMIUM names."""
    browser = Browser(Path(os.environ["KVVERIFY_CHROMIUM"]), tmp_path_factory.mktemp("chromium") / "profile")
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All pages by name, made of committed or invented events."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: make(folder / name) for name, make in PAGES.items()}


@pytest.fixture(params=list(PAGES))
def page(request: pytest.FixtureRequest, pages: dict[str, Path]) -> Path:
    """One page after the other."""
    return pages[request.param]
