from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

import chockstone
from chockstone.api.documentation.pages import describe_server
from support.api.users import KEYS, MODEL
from support.programs import find_program
from support.served import Served

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PAGES = ("/", "/docs")
VIEWER_DOM = Path(__file__).parents[3] / "support" / "api" / "viewer_dom.js"


@pytest.fixture
async def stranger(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """Without a credential."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://localhost:8000") as client:
        yield client


class Links(HTMLParser):
    """What a page refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []  # what a strict policy would refuse
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [value for name in ("href", "src") if (value := given.get(name))]
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


async def test_the_front_page_tells_a_program_where_everything_is(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/")

    told = answer.json()
    assert (told["name"], told["version"]) == ("Chockstone", chockstone.__version__)
    assert told["sdk"]["TINKER_BASE_URL"] == "http://localhost:8000"
    for path in told["links"].values():
        assert (await stranger.get(path, headers=BROWSER, follow_redirects=True)).status_code == 200, path


async def test_the_front_page_tells_a_person_how_to_connect(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/", headers=BROWSER)

    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["vary"] == "Accept"
    assert f"<small>{chockstone.__version__}</small>" in answer.text
    assert "export TINKER_BASE_URL=http://localhost:8000\n" in answer.text


async def test_the_front_page_answers_head(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.head("/")).status_code == 200


@pytest.mark.parametrize("path", PAGES)
async def test_every_link_of_a_page_is_this_servers_and_answers(stranger: httpx.AsyncClient, path: str) -> None:
    page = Links((await stranger.get(path, headers=BROWSER)).text)

    links = [link for link in page.found if link != "data:,"]
    assert links
    assert page.inline == []
    for link in links:
        assert not re.match(r"[a-z]+:|//", link), "nothing comes from elsewhere"
        answer = await stranger.get(urljoin(path, link), headers=BROWSER, follow_redirects=True)
        assert answer.status_code == 200, link


@pytest.mark.parametrize("path", [*PAGES, "/docs/viewer.js", "/docs/style.css"])
async def test_browsers_may_load_nothing_from_elsewhere(stranger: httpx.AsyncClient, path: str) -> None:
    answer = await stranger.get(path, headers=BROWSER)

    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://(?!localhost:8000)", answer.text)


@pytest.mark.parametrize("path", [*PAGES, "/openapi.json"])
async def test_pages_without_a_credential_tell_nothing_of_users_and_models(
    stranger: httpx.AsyncClient, path: str
) -> None:
    text = (await stranger.get(path, headers=BROWSER)).text

    assert not [secret for secret in (*KEYS.values(), "tmp/", f'"{MODEL}"') if secret in text]


def test_a_hostile_host_name_is_shown_as_text() -> None:
    from chockstone.api.documentation import pages

    assert "<script>" not in pages._front_page("http://<script>alert(1)</script>")
    assert describe_server("http://a")["name"] == "Chockstone"


async def test_the_viewer_lists_every_operation_and_sends_requests_with_the_key(
    stranger: httpx.AsyncClient, tmp_path: Path
) -> None:
    node = find_program("node")
    for name in ("docs/viewer.js", "openapi.json"):
        (tmp_path / Path(name).name).write_bytes((await stranger.get(f"/{name}")).content)
    document = json.loads((tmp_path / "openapi.json").read_bytes())

    def try_out(operation: str, **values: str) -> dict[str, Any]:
        files = [VIEWER_DOM, tmp_path / "viewer.js", tmp_path / "openapi.json"]
        done = subprocess.run(
            [node, *files, operation, "tml-of-ann", json.dumps(values)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    read = try_out("GET /api/v1/training_runs/{run_id}", run_id="a b")
    write = try_out("POST /api/v1/create_session")

    assert read["version"] == chockstone.__version__
    assert read["listed"] == sum(len(methods) for methods in document["paths"].values())
    assert 0 < read["left"] < read["listed"]
    [sent] = read["sent"]
    assert (sent["method"], sent["url"]) == ("GET", "http://localhost:8000/api/v1/training_runs/a%20b")
    assert sent["headers"] == {"X-API-Key": "tml-of-ann"}
    assert read["answer"].startswith("200 OK") and '"answer": 42' in read["answer"]
    [sent] = write["sent"]
    assert sent["headers"] == {"X-API-Key": "tml-of-ann", "Content-Type": "application/json"}
    assert isinstance(json.loads(sent["body"]), dict)
