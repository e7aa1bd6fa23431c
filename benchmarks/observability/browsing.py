"""Browsing: Chromium, as a user has it, on the console of a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
)
PATIENCE_MS = 30_000
_PAINT = """() => {
  const paints = performance.getEntriesByName("first-contentful-paint");
  return paints.length ? paints[0].startTime : null;
}"""
_PAINTED = '() => performance.getEntriesByName("first-contentful-paint").length > 0'


@contextmanager
def browser_context() -> Iterator[Any]:  # Any: of Playwright, which only this file imports
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("this measure needs Chromium; install the Debian package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            context.set_default_timeout(PATIENCE_MS)
            yield context
        finally:
            browser.close()


def first_paint_seconds(context: Any, url: str) -> float:
    """From the start of the navigation to the first contentful paint, as the browser measures it, in a new tab."""
    page = context.new_page()
    try:
        answer = page.goto(url, wait_until="load")
        if answer is None or answer.status != 200:
            raise RuntimeError(f"{url} answered {None if answer is None else answer.status}")
        page.wait_for_function(_PAINTED)
        return float(page.evaluate(_PAINT)) / 1e3
    finally:
        page.close()
