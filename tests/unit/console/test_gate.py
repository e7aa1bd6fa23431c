from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fastapi import HTTPException, Response

from chockstone.api.users import UserDirectory
from chockstone.console.gate import Gate, base_path, secured
from chockstone.console.session import BrowserSessions

KEYS = {"ann": "tml-of-ann"}
OWN = {"sec-fetch-site": "same-origin", "origin": "http://here:8000"}


def make_gate(*, keys: dict[str, str] | None = None, public_url: str | None = None) -> Gate:
    users = UserDirectory(KEYS if keys is None else keys, secret=b"s" * 32, now=lambda: datetime.now(UTC))
    sessions = BrowserSessions(b"s" * 32, users, cookie_path=base_path(public_url), now=lambda: datetime.now(UTC))
    return Gate(sessions, public_url=public_url)


def signed_in(gate: Gate) -> tuple[str, str]:
    """Cookie and token of Ann's session."""
    response = Response()
    gate._sessions.begin(response, "tml-of-ann", is_secure=False)
    cookie = response.headers["set-cookie"].partition(";")[0]
    session = gate._sessions.find([cookie])
    assert session is not None
    return cookie, session.token


def scope(path: str, method: str = "GET", query: str = "", **fields: str) -> dict[str, object]:
    given = {"host": "here:8000", **fields}
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}


def status_of(gate: Gate, asked: dict[str, object]) -> int:
    """200: admitted."""
    try:
        gate.admit(asked)
    except HTTPException as error:
        return error.status_code
    return 200


def test_pages_need_the_cookie_and_take_no_key() -> None:
    gate = make_gate()
    cookie, _ = signed_in(gate)

    assert status_of(gate, scope("/console")) == 401
    assert status_of(gate, scope("/console/runs", x_api_key="tml-of-ann")) == 401
    assert status_of(gate, scope("/console/runs", cookie=cookie)) == 200


def test_static_files_and_the_sign_in_page_need_no_cookie() -> None:
    gate = make_gate()

    assert status_of(gate, scope("/console/static/x/css/tokens.css")) == 200
    assert status_of(gate, scope("/console/sign-in")) == 200
    assert status_of(gate, scope("/console/static")) == 401
    assert status_of(gate, scope("/console/sign-in/x")) == 401


def test_a_change_needs_the_token_of_the_session() -> None:
    gate = make_gate()
    cookie, token = signed_in(gate)

    def change(**fields: str) -> int:
        return status_of(gate, scope("/console/sign-out", "POST", **OWN, cookie=cookie, **fields))

    assert change(x_console_token=token) == 200
    assert change() == 403
    assert change(x_console_token="0" * 64) == 403
    assert change(x_console_token="") == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://here:8000"},
        {"sec-fetch-site": "none"},
        {"origin": "http://elsewhere:8000"},
        {"origin": "http://here:8000.elsewhere"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "same-origin", "origin": "http://elsewhere"},
    ],
)
def test_a_change_from_another_site_is_refused_even_with_cookie_and_token(method: str, fields: dict[str, str]) -> None:
    gate = make_gate()
    cookie, token = signed_in(gate)

    for path in ("/console/sign-in", "/console/sign-out"):
        assert status_of(gate, scope(path, method, **fields, cookie=cookie, x_console_token=token)) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("path", ["/console", "/console/live/overview", "/console/sign-in"])
def test_another_site_may_link_to_a_page_and_load_nothing(path: str, site: str) -> None:
    gate = make_gate(keys={})

    def read(mode: str, dest: str, *, method: str = "GET") -> int:
        fields = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
        return status_of(gate, scope(path, method, **fields))

    assert read("navigate", "document") == 200
    assert read("no-cors", "empty") == read("no-cors", "image", method="HEAD") == 403
    assert read("cors", "empty") == read("navigate", "iframe") == 403
    assert status_of(gate, scope(path, **{"sec-fetch-site": site})) == 403
    assert status_of(gate, scope(path, **{"sec-fetch-site": "none", "sec-fetch-mode": "navigate"})) == 200


def test_a_browser_without_fetch_metadata_is_known_by_its_origin() -> None:
    gate = make_gate()

    assert status_of(gate, scope("/console/sign-in", "POST", origin="http://here:8000")) == 200


def test_behind_a_proxy_the_origin_is_that_of_the_public_url() -> None:
    gate = make_gate(public_url="https://models.example.com/train")

    assert gate.base == "/train/console"
    assert status_of(gate, scope("/console/sign-in", "POST", origin="https://models.example.com")) == 200


def test_a_server_without_keys_checks_changes_all_the_same() -> None:
    gate = make_gate(keys={})
    session = gate._sessions.find([])
    assert session is not None

    assert status_of(gate, scope("/console")) == 200
    assert status_of(gate, scope("/console/x", "POST", **OWN)) == 403
    assert status_of(gate, scope("/console/x", "POST", **OWN, x_console_token=session.token)) == 200
    assert status_of(gate, scope("/console/x", "POST", origin="http://elsewhere", x_console_token=session.token)) == 403


@pytest.mark.parametrize(
    ("wanted", "target"),
    [
        ("/console/runs?state=ready", "/console/runs?state=ready"),
        ("/console", "/console"),
        (None, "/console"),
        ("https://elsewhere/console", "/console"),
        ("//elsewhere/console", "/console"),
        ("/console\\..\\x", "/console"),
        ("/consoles", "/console"),
        ("/console/\r\nSet-Cookie: a=b", "/console"),
        ("javascript:alert(1)", "/console"),
    ],
)
def test_after_signing_in_only_pages_of_the_console_open(wanted: str | None, target: str) -> None:
    assert make_gate().next_page(wanted) == target


def test_a_person_is_sent_to_the_sign_in_page_and_back() -> None:
    answer = make_gate().send_to_sign_in(scope("/console/runs", query="state=ready", accept="text/html"))

    assert answer is not None and answer.status_code == 303
    assert answer.headers["location"] == "/console/sign-in?next=%2Fconsole%2Fruns%3Fstate%3Dready"


def test_a_link_of_another_site_opens_the_page_once_more_to_get_the_cookie() -> None:
    asked = scope("/console/runs", accept="text/html", sec_fetch_site="cross-site")

    answer = make_gate().send_to_sign_in(asked)

    assert answer is not None and answer.status_code == 200
    assert b'http-equiv="refresh"' in answer.body


def test_a_script_learns_that_the_session_has_ended() -> None:
    gate = make_gate()

    part = gate.send_to_sign_in(scope("/console/runs", accept="text/html", hx_request="true"))

    assert part is not None and (part.status_code, part.headers["hx-redirect"]) == (401, "/console/sign-in")
    assert gate.send_to_sign_in(scope("/console/live/overview", accept="text/event-stream")) is None


def test_pages_are_not_cached_and_files_are() -> None:
    page, file = dict(secured([])), dict(secured([(b"cache-control", b"public")]))

    assert page[b"cache-control"] == b"no-store"
    assert file[b"cache-control"] == b"public"
    assert b"frame-ancestors 'none'" in page[b"content-security-policy"]
