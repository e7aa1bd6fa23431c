from __future__ import annotations

import pytest
from fastapi import HTTPException
from starlette.routing import Match

from chockstone.api.admission.browser import ForwardedPages, PagesRoute, is_page, json_refusal


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/console", True), ("/console/", True), ("/console/runs", True), ("/consoles", False), ("/api/console", False)],
)
def test_pages_are_what_lies_below_the_prefix(path: str, expected: bool) -> None:
    assert is_page(path) is expected
    assert PagesRoute(ForwardedPages()).matches({"type": "http", "path": path})[0] == (
        Match.FULL if expected else Match.NONE
    )


def test_an_api_replica_leaves_identification_to_the_engine() -> None:
    assert ForwardedPages().admit({"path": "/console"}) is None


def test_a_refusal_says_why() -> None:
    answer = json_refusal(HTTPException(403, "no", {"X-Why": "so"}))

    assert (answer.status_code, answer.body, answer.headers["x-why"]) == (403, b'{"detail":"no"}', "so")
