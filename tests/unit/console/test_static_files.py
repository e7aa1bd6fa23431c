from __future__ import annotations

import gzip
import re
from importlib.resources import files

import pytest

from chockstone.console.static_files import StaticFiles, static_files
from support.page_visitor import PageVisitor

FOLDER = files("chockstone.console") / "static"
NAMES = ["css/tokens.css", "js/console.js", "vendor/htmx-2.0.11.min.js", "vendor/inter-5.3.0-latin-wght.woff2"]


def test_the_digest_is_the_same_for_the_same_files() -> None:
    assert StaticFiles().digest == static_files().digest
    assert re.fullmatch(r"[0-9a-f]{16}", static_files().digest)


def test_a_file_that_is_not_there_fails_where_a_page_names_it() -> None:
    with pytest.raises(KeyError):
        static_files().path("css/nowhere.css")


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_is_kept_for_a_year_and_needs_no_cookie(visitor: PageVisitor, name: str) -> None:
    answer = await visitor.open("/console" + static_files().path(name))

    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.content == (FOLDER / name).read_bytes()


async def test_text_is_compressed_where_the_browser_takes_it(visitor: PageVisitor) -> None:
    url = "/console" + static_files().path("js/console.js")
    content = (FOLDER / "js/console.js").read_bytes()

    async with visitor.http.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as small:
        sent = b"".join([piece async for piece in small.aiter_raw()])
    plain = await visitor.http.get(url, headers={"Accept-Encoding": "identity"})

    assert small.headers["content-encoding"] == "gzip"
    assert len(sent) < len(content) and gzip.decompress(sent) == content
    assert plain.content == content


async def test_a_page_of_an_earlier_version_gets_todays_files_and_keeps_none(visitor: PageVisitor) -> None:
    answer = await visitor.open("/console/static/0000000000000000/css/tokens.css")

    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e/app.py", "css/", "vendor/README.md", "css/../../app.py"])
async def test_nothing_but_the_files_is_served(visitor: PageVisitor, name: str) -> None:
    answer = await visitor.open(f"/console/static/{static_files().digest}/{name}")

    assert answer.status_code in (303, 404)
    assert "import" not in answer.text


def test_every_vendored_file_has_its_version_and_licence_named() -> None:
    readme = (FOLDER / "vendor/README.md").read_text()

    for each in (FOLDER / "vendor").iterdir():
        assert each.name == "README.md" or f"`{each.name}`" in readme, each.name


def test_no_file_of_ours_names_another_host() -> None:
    for folder in ("css", "js"):
        for each in (FOLDER / folder).iterdir():
            assert not re.search(r"https?://|url\(['\"]?//", each.read_text()), each.name


def test_the_dark_theme_is_the_same_by_choice_and_by_the_system() -> None:
    text = (FOLDER / "css" / "tokens.css").read_text()
    themes = re.findall(r":root(?:\[data-theme=\"dark\"\]|:not\(\[data-theme\]\)) \{(.*?)\}", text, re.DOTALL)

    chosen, of_system = ([line.strip() for line in theme.strip().splitlines()] for theme in themes)

    assert chosen == of_system and "color-scheme: dark;" in chosen
