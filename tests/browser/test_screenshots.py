"""Screenshots of the main states; `nox -s browser -- --screenshots docs/screenshots` keeps them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from tests.browser.devtools import Browser

MOST_BYTES = 200_000
DESK, TALL, PHONE = (1000, 600), (1000, 900), (390, 740)
STATES = {
    "sign-off": ("sign-off", TALL, False, ""),
    "sign-off-dark": ("sign-off-kernels", DESK, True, ""),
    "sign-off-phone": ("sign-off", PHONE, False, ""),
    "sign-off-failures": ("sign-off", DESK, False, "#failures"),
    "rollout": ("rollout", TALL, False, ""),
    "report-pass": ("pass", DESK, False, ""),
    "report-fail": ("fail", DESK, False, ""),
    "report-dark": ("tier-diff", DESK, True, ""),
    "report-phone": ("tier-diff-fail", PHONE, False, ""),
    "kill-table": ("kill-table", DESK, False, "#faults"),
}


@pytest.mark.parametrize("name", list(STATES))
def test_a_screenshot_shows_something_and_is_small(
    chromium: Browser, pages: dict[str, Path], tmp_path: Path, pytestconfig: pytest.Config, name: str
) -> None:
    page, (width, height), dark, at = STATES[name]
    with chromium.tab(width=width, height=height, dark=dark, phone=width < 500) as tab:
        tab.open(pages[page])
        if at:
            tab.evaluate(f"document.querySelector({at!r}).scrollIntoView()")
        image = tab.screenshot()
    folder = pytestconfig.getoption("--screenshots", None) or tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(image)
    assert len(image) < MOST_BYTES
    assert struct.unpack(">II", image[16:24]) == (width, height)
    assert len(set(pixels(image))) > 20  # a blank page has one shade


def pixels(image: bytes) -> bytes:
    """Return the raw bytes of a PNG's rows; enough to tell a picture from an empty one."""
    at, data = 8, b""
    while at < len(image):
        (length,), kind = struct.unpack(">I", image[at : at + 4]), image[at + 4 : at + 8]
        data += image[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return zlib.decompress(data)
