"""Pages in headless Chromium, driven through chromedriver (WebDriver): what they show, and what keys and clicks do."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Browser", "browser"]

_SECONDS = 60
"""That one command of the driver may take."""
_PATIENCE = 20
"""Seconds in which the driver starts."""


class Browser:
    """A window.

    Args:
        address: of the driver's session.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, page: Path) -> None:
        """Loads a page to its end."""
        self._say("url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:
        """What a script returns."""
        return self._say("execute/sync", {"script": script, "args": []})

    def becomes(self, script: str, wanted: Any) -> bool:
        """Whether a script returns a value by and by: what pages do of events comes after the command that caused them."""
        until = time.monotonic() + _PATIENCE
        while (found := self.run(script)) != wanted and time.monotonic() < until:
            time.sleep(0.05)
        return bool(found == wanted)

    def press(self, selector: str, *keys: str) -> None:
        """Types into the element of a selector, which has the focus then."""
        found = self._say("element", {"using": "css selector", "value": selector})
        for key in keys:
            self._say(f"element/{next(iter(found.values()))}/value", {"text": key})

    def dark(self) -> None:
        """Has pages believe that the system is in dark mode."""
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        self._say("goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})

    def problems(self) -> list[str]:
        """What the console has told of scripts that failed and of things that could not be loaded, warnings included."""
        return [entry["message"] for entry in self._say("se/log", {"type": "browser"})]

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._say("screenshot", None))

    def _say(self, command: str, body: dict[str, Any] | None) -> Any:
        return _ask(f"{self._address}/{command}", body)


def _ask(address: str, body: dict[str, Any] | None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as problem:
        raise AssertionError(json.load(problem)["value"]["message"]) from None


@contextmanager
def browser(folder: Path, size: Sequence[int] = (1400, 1000)) -> Iterator[Browser]:
    """A window of a browser of its own. Skips where Chromium or its driver is not installed.

    Args:
        folder: for its profile.
    """
    driver = shutil.which("chromedriver")
    if driver is None or (shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("needs Chromium and chromedriver: apt-get install chromium chromium-driver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    arguments = [*flags, f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}"]
    wanted = {"goog:loggingPrefs": {"browser": "ALL"}, "goog:chromeOptions": {"args": arguments}}
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            with suppress(OSError):
                _ask(f"{address}/status", None)
                break
            assert time.monotonic() < until, "chromedriver does not answer"
            time.sleep(0.1)
        session = _ask(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        yield Browser(f"{address}/session/{session}")
        _ask(f"{address}/session/{session}", None, "DELETE")
    finally:
        process.terminate()
        process.wait(_SECONDS)
