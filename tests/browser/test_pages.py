"""Every page in a real browser: quiet, self-contained, readable by eye, by keyboard, by screen reader, on a phone and on paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.checks import complaints, low_contrast, overflow, requests_made, unprinted, unreached, untold
from tests.browser.devtools import Browser

PHONES = [(360, 740), (320, 568)]  # 320 px is what WCAG 2.2, 1.4.10 asks for
LOADED_MS = 1000.0
MOST_PAGES = 400
# both in milliseconds since the page was asked for
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
PAINTED = """new Promise(done => new PerformanceObserver(list => done(list.getEntriesByName('first-contentful-paint')[0].startTime))
  .observe({type: 'paint', buffered: true}))"""


def test_it_is_quiet_and_asks_nobody(chromium: Browser, page: Path) -> None:
    with chromium.tab() as tab:
        tab.open(page)
        assert complaints(tab) == []
        assert requests_made(tab) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_its_texts_stand_out(chromium: Browser, page: Path, dark: bool) -> None:
    with chromium.tab(dark=dark) as tab:
        tab.open(page)
        back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", back)[:3])) < 150) is dark
        assert low_contrast(tab) == []


@pytest.mark.parametrize(("width", "height"), PHONES)
def test_it_fits_a_phone(chromium: Browser, page: Path, width: int, height: int) -> None:
    with chromium.tab(width=width, height=height, phone=True) as tab:
        tab.open(page)
        assert overflow(tab, width) == []
        assert float(tab.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")) >= 16


def test_a_screen_reader_can_tell_it(chromium: Browser, page: Path) -> None:
    with chromium.tab() as tab:
        tab.open(page)
        assert untold(tab) == []


def test_the_keyboard_reaches_all_of_it(chromium: Browser, page: Path) -> None:
    with chromium.tab() as tab:
        tab.open(page)
        assert unreached(tab) == []


def test_wide_tables_scroll_by_keyboard(chromium: Browser, page: Path) -> None:
    with chromium.tab(width=360, height=740, phone=True) as tab:
        tab.open(page)
        wide = "[...document.querySelectorAll('.wide')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 40)"
        if tab.evaluate(f"{wide}.length"):
            tab.evaluate(f"{wide}[0].focus()")
            tab.press("ArrowRight")
            moved = f"new Promise(done => setTimeout(() => done({wide}[0].scrollLeft), 400))"
            assert tab.evaluate(moved) > 0


def test_what_can_be_opened_opens_by_enter(chromium: Browser, page: Path) -> None:
    with chromium.tab() as tab:
        tab.open(page)
        states = []
        for number in range(min(5, tab.evaluate("document.querySelectorAll('details').length"))):
            of = f"document.querySelectorAll('details')[{number}]"
            tab.evaluate(f"{of}.querySelector('summary').focus()")
            before = tab.evaluate(f"{of}.open")
            tab.press("Enter")
            states.append(tab.evaluate(f"{of}.open") is not before)
        assert all(states)


def test_it_prints(chromium: Browser, page: Path) -> None:
    with chromium.tab() as tab:
        tab.open(page)
        pdf = tab.pdf()
        assert pdf.startswith(b"%PDF-")
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= MOST_PAGES
        assert b"/StructTreeRoot" in pdf  # tagged: headings and tables are told on paper's twin, too
        assert unprinted(tab) == []


@pytest.mark.parametrize("name", ["many", "sign-off-many"])
def test_ten_thousand_events_load_and_show_within_a_second(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    took = []
    for _ in range(5):
        with chromium.tab() as tab:
            tab.open(pages[name])
            took.append(max(tab.evaluate(LOADED), tab.evaluate(PAINTED)))
    assert min(took) < LOADED_MS, took  # the fastest of five: others work on the machine


def test_a_hostile_name_stays_text(chromium: Browser, pages: dict[str, Path]) -> None:
    with chromium.tab() as tab:
        tab.open(pages["hostile"])
        assert tab.evaluate("document.querySelectorAll('img, script:not([type=\"application/json\"])').length") == 0
        assert "<img src=http://kvverify.invalid/x onerror=alert(1)>" in tab.evaluate("document.body.textContent")
