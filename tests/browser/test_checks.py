"""Each check of a page finds the fault it is there for: a good page passes, the same page with one fault does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.checks import complaints, low_contrast, overflow, requests_made, unprinted, unreached, untold
from tests.browser.devtools import Browser, Tab

GOOD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>t</title>
<style>body { background: #fff; color: #000; } @media print { details::details-content { content-visibility: visible; } }</style></head>
<body><main><h1>One</h1><h2>Two</h2><p>Text <a href="#x" id="x">link</a></p>
<details><summary>More</summary><p>within</p></details>
<div class="wide"><table><caption>c</caption><tr><th scope="row">h</th><td>1</td></tr></table></div>
<svg role="img" aria-label="plot" width="9" height="9"><rect width="9" height="9"/></svg></main></body></html>
"""


def phone(tab: Tab) -> list[str]:
    return overflow(tab, 1280)


FAULTS: list[tuple[Callable[[Tab], list[str]], str, str, str]] = [
    (complaints, "<h2>", "<script>throw Error('x')</script><h2>", "Uncaught"),
    (complaints, "<h2>", "<script>console.log('x')</script><h2>", "'value': 'x'"),
    (complaints, "<h2>", "<link rel=stylesheet href=gone.css><h2>", "ERR_FILE_NOT_FOUND"),
    (requests_made, "<h2>", "<img alt=x src=http://kvverify.invalid/x.png><h2>", "http://kvverify.invalid/x.png"),
    (
        requests_made,
        "</style>",
        "@font-face { font-family: f; src: url(f.woff) } h1 { font-family: f }</style>",
        "f.woff",
    ),
    (requests_made, "<h2>", "<script>fetch('https://kvverify.invalid/')</script><h2>", "https://kvverify.invalid/"),
    (phone, "<p>Text", "<p style='width: 2000px'>Text", "p.: Text"),
    (low_contrast, "color: #000", "color: #888", "3.54: rgb(136, 136, 136)"),
    (low_contrast, "<p>Text", "<p style='color: rgba(0, 0, 0, .4)'>Text", "rgba(0, 0, 0, 0.4)"),
    (
        low_contrast,
        "<rect",
        "<rect width='9' height='9'/><text y='8' font-size='9'>x</text><rect",
        "1.00: rgb(0, 0, 0) on rgb(0",
    ),
    (untold, "<svg", "<figure><p>x</p></figure><svg", "figure without a caption"),
    (untold, ' aria-label="plot"', "", "image without a name"),
    (untold, "<caption>c</caption>", "", "table without a name"),
    (untold, '<th scope="row">h</th>', "<td>h</td>", "table without headings: c"),
    (untold, "<h2>Two</h2>", "<h3>Two</h3>", "heading of level 3 below one of level 1: Two"),
    (untold, "<h1>One</h1>", "", "headings begin with levels [2]"),
    (untold, ">link<", "><", "link without a name"),
    (untold, 'id="x"', "", "link to #x, which is nowhere"),
    (untold, "<h2>", "<h2 id=x>", "two elements with the id x"),
    (untold, ' lang="en"', "", "no language"),
    (untold, "<main>", "<div>", "0 main landmarks"),
    (unreached, "</style>", "a { outline: none !important }</style>", "no focus to be seen on 'link'"),
    (unreached, "<details>", "<button tabindex=2>b</button><details>", "Tab 1 of 3 leads to [1"),
    (unprinted, "@media print", "@media tv", "closed on paper: within"),
    (unprinted, "<table>", "<table style='width: 2000px'>", "beyond the paper"),
    (unprinted, "</style>", ".wide { overflow-x: auto } table { width: 2000px }</style>", "1 tables cut off"),
]


@pytest.mark.parametrize("check", list(dict.fromkeys(f[0] for f in FAULTS)), ids=lambda check: check.__name__)
def test_a_good_page_has_no_fault(chromium: Browser, tmp_path: Path, check: Callable[[Tab], list[str]]) -> None:
    (tmp_path / "good.html").write_text(GOOD)
    with chromium.tab() as tab:
        tab.open(tmp_path / "good.html")
        assert check(tab) == []


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f[0].__name__} {f[3]}" for f in FAULTS])
def test_a_fault_is_found(
    chromium: Browser, tmp_path: Path, fault: tuple[Callable[[Tab], list[str]], str, str, str]
) -> None:
    check, old, new, told = fault
    assert GOOD.count(old) == 1
    (tmp_path / "bad.html").write_text(GOOD.replace(old, new))
    with chromium.tab() as tab:
        tab.open(tmp_path / "bad.html")
        assert told in " | ".join(check(tab))
