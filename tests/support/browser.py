"""Chromium for tests and pictures: Debian's, headless, driven by Playwright, without any connection off this machine.

Playwright was chosen over Selenium: its locators wait for events instead of seconds, it reports console messages, page
errors and every request of a context, and it sets the colour scheme and the width of a page. It comes as a wheel and
needs no driver of the browser's own version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from support.programs import find_program

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request, WebError

Theme = Literal["light", "dark"]
DESKTOP: Final = (1440, 900)
PHONE: Final = (390, 844)
PATIENCE_MS: Final = 30_000  # an upper bound for events on a busy machine; nothing waits for it to pass

_FLAGS: Final = (
    "--no-sandbox",  # root has no user namespaces in containers; the pages are our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. Without Chromium the test is skipped, and fails in CI."""
    program = find_program("chromium")
    from playwright.sync_api import expect, sync_playwright  # late: most tests need no browser

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        playwright.selectors.set_test_id_attribute("data-test")
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A person at a browser window of their own, with the cookies of one context.

    Leaving fails if a page wrote an error to its console, threw, broke its Content-Security-Policy, or asked another
    host for anything. A test that brings such a complaint about expects it first.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        size: tuple[int, int] = DESKTOP,
        theme: Theme = "light",
        scale: float = 1.0,
        reduced_motion: bool = True,
    ) -> None:
        self.url = url
        self._context = browser.new_context(
            base_url=url,
            viewport={"width": size[0], "height": size[1]},
            color_scheme=theme,
            device_scale_factor=scale,
            reduced_motion="reduce" if reduced_motion else "no-preference",
            locale="en-GB",
            timezone_id="UTC",
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self._context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        self._context.add_init_script(_REPORT_VIOLATIONS)
        self._context.on("console", self._heard)
        self._context.on("weberror", self._threw)
        self._context.on("request", self._asked)
        self._complaints: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        self.page: Page = self._context.new_page()

    def __enter__(self) -> Visitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        complaints = self.complaints()
        self._context.close()
        if error is None:
            assert not complaints, "\n".join(["a page complained:", *complaints])

    def open(self, path: str) -> Page:
        """Go to a page of the console, such as ``/console/runs``; returns when its parts are loaded."""
        self.page.goto(path, wait_until="load")
        return self.page

    def sign_in(self, key: str) -> None:
        """Send the form of the sign-in page, without showing the page."""
        headers = {"Origin": self.url, "Sec-Fetch-Site": "same-origin"}
        answer = self._context.request.post("/console/sign-in", form={"key": key}, headers=headers, max_redirects=0)
        assert answer.status == 303, answer.text()

    def another_page(self) -> Page:
        """A second tab with the same cookies."""
        return self._context.new_page()

    def expect_complaint(self, pattern: str) -> None:
        """Accept messages that match, for instance of a server that a test kills."""
        self._expected.append(re.compile(pattern))

    def complaints(self) -> list[str]:
        return [text for text in self._complaints if not any(known.search(text) for known in self._expected)]

    def cookies(self) -> list[dict[str, Any]]:
        return [dict(cookie) for cookie in self._context.cookies()]

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complaints.append(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _threw(self, error: WebError) -> None:
        self._complaints.append(f"page error: {error.error}")

    def _asked(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc != urlsplit(self.url).netloc:
            self._complaints.append(f"request to another host: {request.url}")


_REPORT_VIOLATIONS: Final = """
addEventListener("securitypolicyviolation", event => {
  console.error(`content security policy: ${event.violatedDirective} of ${event.blockedURI} ${event.sample}`);
});
"""


def overflow_of(page: Page) -> list[str]:
    """The elements that make a page wider than its window: none, unless people must scroll sideways."""
    found: list[str] = page.evaluate(_OVERFLOW)
    return found


_OVERFLOW: Final = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  return [...document.body.querySelectorAll("*")]
    .filter(element => element.getBoundingClientRect().right > width + 1)
    .slice(0, 10)
    .map(element => `${element.tagName.toLowerCase()}.${element.className} ${element.dataset.test ?? ""}`);
}"""


def accessibility_violations(page: Page) -> list[str]:
    """What axe-core finds on a page: rule, elements and what to change, one line each."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    results = Axe().run(page, options=options)
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}: {node['target']}: {node['failureSummary']}"
        for rule in results.response["violations"]
        for node in rule["nodes"]
    ]
