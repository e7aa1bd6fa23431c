"""Check that links lead somewhere: files and anchors exist, and no asset comes from another host.

    python .ci/links.py PATH...

A PATH is a directory of HTML pages, an HTML page or a Markdown page. Links to other hosts are allowed, and are not
followed; styles, scripts, fonts and images of other hosts are not allowed. Prints each broken link and exits with 1 if
there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

ASSETS: Final = {
    ("img", "src"),
    ("script", "src"),
    ("link", "href"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
}
ELSEWHERE: Final = re.compile(r"https?:|mailto:|//")
STYLE_URL: Final = re.compile(r"(?:url\(|@import\s+)[\"']?(https?:)?//")


class Page(HTMLParser):
    """The anchors and links of one page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors = {"", "top"}
        self.links: list[tuple[str, bool]] = []  # with whether it is an asset
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value)
            elif name in ("href", "src") or (tag, name) == ("source", "srcset"):
                is_asset = (tag, name) in ASSETS and ("rel", "canonical") not in attrs
                self.links.append((value, is_asset))


@cache
def read(path: Path) -> Page:
    text = path.read_text()
    if path.suffix == ".md":
        import markdown  # the documentation site needs it, other users of this file do not

        text = markdown.markdown(text, extensions=["attr_list", "fenced_code", "md_in_html", "tables", "toc"])
    return Page(text)


def broken(path: Path, root: Path) -> Iterator[str]:
    """Say what is wrong with each broken link of a page. Links that start with a slash begin at ``root``."""
    for link, is_asset in read(path).links:
        if ELSEWHERE.match(link):
            if is_asset:
                yield f"{path}: {link!r} is an asset of another host; put it below docs/assets"
            continue
        parts = urlsplit(link)
        if parts.scheme:  # data:, javascript:
            continue
        base, name = (root, parts.path[1:]) if parts.path.startswith("/") else (path.parent, parts.path)
        target = (base / unquote(name)).resolve() if parts.path else path.resolve()
        if target.is_dir():
            target = target / "index.html" if (target / "index.html").exists() else target
        if not target.exists():
            yield f"{path}: {link!r} leads to no file"
        elif target.suffix in (".html", ".md") and unquote(parts.fragment) not in read(target).anchors:
            yield f"{path}: {link!r} names no heading of its page"


def pages(paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Each page, and the directory that is the root of its site."""
    for path in paths:
        if path.is_dir():
            yield from ((page, path) for page in sorted(path.rglob("*.html")))
        else:
            yield path, path.parent


def foreign_styles(paths: Iterable[Path]) -> Iterator[str]:
    for sheet in sorted(sheet for path in paths if path.is_dir() for sheet in path.rglob("*.css")):
        if STYLE_URL.search(sheet.read_text()):
            yield f"{sheet}: loads an asset of another host"


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments]
    if missing := [path for path in paths if not path.exists()]:
        print(f"no such file or directory: {', '.join(map(str, missing))}", file=sys.stderr)
        return 2
    checked = [*pages(paths)]
    found = [*(line for page, root in checked for line in broken(page, root)), *foreign_styles(paths)]
    print("\n".join([*found, f"{len(checked)} pages checked, {len(found)} broken links"]))
    return 1 if found or not checked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
