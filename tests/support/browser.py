"""A real browser for the tests of pages: Chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@dataclass
class Browser:
    """A running browser.

    Attributes:
        problems: Warnings and errors that pages have written to the console, and exceptions of their scripts.

    """

    chromium: Any
    problems: list[str] = field(default_factory=list)

    def open(self, address: str, width: int = 1280, height: int = 900, **options: Any) -> Any:
        """Open an address in a new window; return its page."""
        page = self.chromium.new_page(viewport={"width": width, "height": height}, **options)
        page.set_default_timeout(30_000)
        page.on("console", self._record)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.goto(address)
        return page

    def _record(self, line: Any) -> None:
        if line.type in ("warning", "error"):
            self.problems.append(line.text)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start a browser; skip the test if there is none."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        )
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
