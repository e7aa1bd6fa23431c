"""What holds for every page: the headers, the policy, and who gets in."""

from __future__ import annotations

import httpx
import pytest

from chockstone.api.app import create_app
from chockstone.api.context import Context
from support.api.users import KEYS
from support.page_visitor import Markup, PageVisitor
from support.served import Served

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PATHS = ["/console", "/console/sign-in", "/console/nowhere", "/console/runs/nothing", "/console/static/x/nowhere"]


def assert_secured(answer: httpx.Response) -> None:
    assert answer.headers.get_list("content-security-policy") == [POLICY], answer.url
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "cache-control" in answer.headers


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_has_the_security_headers(ann: PageVisitor, visitor: PageVisitor, path: str) -> None:
    for each in (ann, visitor):
        assert_secured(await each.open(path))
        assert_secured(await each.post(path))
        assert_secured(await each.open(path, Accept="application/json"))
        assert_secured(await each.open(path, Host="bad host"))


@pytest.mark.parametrize("path", PATHS)
async def test_no_page_has_anything_inline(ann: PageVisitor, path: str) -> None:
    page = Markup((await ann.open(path)).text)

    assert page.refused_by_policy() == []


async def test_every_file_that_a_page_names_is_served_by_this_server(ann: PageVisitor) -> None:
    page = Markup((await ann.open("/console")).text)
    links = [given["src"] for tag, given in page.elements if tag == "script"]
    links += [given["href"] for tag, given in page.elements if tag == "link"]

    assert len(links) > 5
    for link in links:
        assert link is not None and link.startswith("/console/static/")
        assert (await ann.open(link)).status_code == 200, link


async def test_a_failure_of_the_server_is_a_page_with_the_headers_too(
    ann: PageVisitor, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("chockstone.console.pages.overview.look", fail)

    for accept in ("text/html", "application/json"):
        answer = await ann.open("/console", Accept=accept)
        assert answer.status_code == 500
        assert_secured(answer)
        assert "secret" not in answer.text


async def test_the_cookie_opens_no_route_of_the_api(ann: PageVisitor) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in ann.http.cookies.items())
    assert cookie

    answer = await ann.http.get("/api/v1/training_runs", headers={"Cookie": cookie})

    assert answer.status_code == 401


async def test_a_key_opens_no_page(visitor: PageVisitor) -> None:
    answer = await visitor.open("/console", **{"X-API-Key": KEYS["ann"]})

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")


async def test_a_revoked_key_ends_the_session(ann: PageVisitor, context: Context) -> None:
    assert (await ann.open("/console")).status_code == 200

    context.users._configured = {}
    context.users.reload([])

    assert (await ann.open("/console")).status_code == 303
    assert (await ann.open("/console/session", Accept="application/json")).status_code == 401


async def test_bodies_of_strangers_are_not_read(visitor: PageVisitor) -> None:
    answer = await visitor.http.post(
        "/console/sign-in",
        content=b"x" * (1 << 20),
        headers={"Origin": "http://localhost", "Content-Length": "1048576"},
    )

    assert answer.status_code == 413


async def test_without_the_console_its_paths_are_nothing(context: Context) -> None:
    async with PageVisitor(create_app(context)) as visitor:
        answer = await visitor.open("/console")
        with_key = await visitor.open("/console", **{"X-API-Key": KEYS["ann"]})
        front = await visitor.open("/")

    assert (answer.status_code, with_key.status_code) == (401, 404)
    assert "Open the console" not in front.text


async def test_a_server_without_keys_opens_without_signing_in(open_server: Served) -> None:
    async with PageVisitor(open_server.app) as visitor:
        page = await visitor.open("/console")
        sign_in = await visitor.open("/console/sign-in")
        foreign = await visitor.open("/console", Host="elsewhere.example")

    assert page.status_code == 200
    assert (sign_in.status_code, sign_in.headers["location"]) == (303, "/console")
    assert foreign.status_code == 421
    assert_secured(foreign)


@pytest.mark.parametrize(
    ("path", "origin"), [("/console/sign-out", "http://localhost"), ("/console/sign-in", "http://x")]
)
async def test_a_change_is_refused_before_a_byte_of_its_body_is_read(served: Served, path: str, origin: str) -> None:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        raise AssertionError("the body was read")

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"origin", origin.encode()), (b"content-length", b"10")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "headers": headers,
        "state": {},
    }
    await served.app(scope, receive, send)  # type: ignore[arg-type]  # plain dictionaries

    assert sent[0]["status"] == (401 if origin == "http://localhost" else 403)
