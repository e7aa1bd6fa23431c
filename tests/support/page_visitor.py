"""A browser without scripts: it keeps cookies, and sends the header fields that a browser sends by itself."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any, Self

import httpx
from fastapi import FastAPI

ORIGIN = "http://localhost"
_NAVIGATION = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Site": "same-origin"}
_FROM_PAGE = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin", "Accept": "*/*"}


class PageVisitor:
    def __init__(self, app: FastAPI) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=ORIGIN, timeout=60)
        self.token = ""  # of the session, as the page it opened last has it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def open(self, path: str, **headers: str) -> httpx.Response:
        """A page, as by a click on a link of the console; redirects are not followed."""
        answer = await self.http.get(path, headers={**_NAVIGATION, **headers})
        if found := re.search(r'"X-Console-Token": "([0-9a-f]*)"', answer.text):
            self.token = found[1]
        return answer

    async def post(
        self, path: str, form: dict[str, Any] | None = None, *, but: dict[str, str | None] | None = None
    ) -> httpx.Response:
        """A change, as htmx sends it from a page. ``but`` replaces header fields, or leaves out those that are None."""
        headers = {**_FROM_PAGE, "HX-Request": "true", "X-Console-Token": self.token, **(but or {})}
        given = {name: value for name, value in headers.items() if value is not None}
        return await self.http.post(path, data=form or {}, headers=given)

    async def sign_in(self, key: str, *, next_page: str = "/console") -> httpx.Response:
        """As the form of the sign-in page does."""
        headers = {**_NAVIGATION, "Origin": ORIGIN}
        answer = await self.http.post("/console/sign-in", data={"key": key, "next": next_page}, headers=headers)
        if answer.status_code == 303:
            await self.open("/console")
        return answer


class Markup(HTMLParser):
    """What a page is made of: its elements with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._text: list[str] = []
        self.feed(page)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self._text.append(html.unescape(data))

    def having(self, attribute: str, value: str | None = None) -> list[dict[str, str | None]]:
        """The attributes of all elements that have this one."""
        found = [given for _, given in self.elements if attribute in given]
        return found if value is None else [given for given in found if given[attribute] == value]

    def refused_by_policy(self) -> list[str]:
        """What the Content-Security-Policy of the console would refuse: inline scripts, styles and handlers."""
        found = []
        for tag, given in self.elements:
            found += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
            if tag == "style" or (tag == "script" and not given.get("src")):
                found.append(tag)
        return found
