"""Chromium driven through its DevTools protocol over a pipe: no driver, no port, no package.

The browser reads commands from its file descriptor 3 and writes answers and events to 4, each a JSON text ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # CI runs as the administrator, to whom Chromium refuses its sandbox; the pages are ours
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # nothing is resolved, so that nothing can leave even where a test misses it
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
]
# a child's descriptors 3 and 4 may be taken by the time it starts; this small step puts the pipes there
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class BrowserError(AssertionError):
    """The browser refused a command, or said nothing in time."""


class Browser:
    """A running Chromium."""

    def __init__(self, binary: Path, profile: Path) -> None:
        """Start ``binary`` with the new, empty ``profile``."""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        words = [sys.executable, "-c", LAUNCH, *map(str, ends), str(binary), *FLAGS, f"--user-data-dir={profile}"]
        with (profile.parent / f"{profile.name}.log").open("wb") as log:
            self._process = subprocess.Popen(words, pass_fds=ends, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that come meanwhile are kept."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            message = self._next(until, method)
            if message.get("id") == number:
                break
            self.events.append(message)
        if "error" in message:
            raise BrowserError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def wait(self, method: str, session: str) -> None:
        """Wait for an event of a session."""
        until, seen = time.monotonic() + PATIENCE_S, 0
        while True:
            if any(e.get("method") == method and e.get("sessionId") == session for e in self.events[seen:]):
                return
            seen = len(self.events)
            self.events.append(self._next(until, method))

    def _next(self, until: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise BrowserError(f"{waiting_for}: {'the browser ended' if ready else f'no answer in {PATIENCE_S} s'}")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    @contextlib.contextmanager
    def tab(self, *, width: int = 1280, height: int = 800, dark: bool = False, phone: bool = False) -> Iterator[Tab]:
        """Open an empty tab of this size, in pixels of CSS."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Network", "Log", "Runtime"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        tab.call("Page.bringToFront")  # a tab behind another one is not painted
        try:
            yield tab
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


@dataclass
class Tab:
    """One tab: a page, what it said and what it asked for."""

    browser: Browser
    session: str
    _opened: int = field(default=0, init=False)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to this tab."""
        return self.browser.call(method, self.session, **params)

    def open(self, page: Path) -> None:
        """Load a file and wait until it and all that it wants are there."""
        self._opened = len(self.browser.events)
        answer = self.call("Page.navigate", url=page.resolve().as_uri())
        assert "errorText" not in answer, answer
        self.browser.wait("Page.loadEventFired", self.session)
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """Return what this page has sent since it was opened, of these kinds."""
        sent = self.browser.events[self._opened :]
        return [e["params"] for e in sent if e.get("sessionId") == self.session and e["method"] in methods]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key, by its name in JavaScript."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "End": 35, "Home": 36}
        text = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, *, whole: bool = False) -> bytes:
        """Return what is seen as PNG, or the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, optimizeForSpeed=False)
        return base64.b64decode(answer["data"])

    def pdf(self) -> bytes:
        """Return the page as it prints on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(answer["data"])
