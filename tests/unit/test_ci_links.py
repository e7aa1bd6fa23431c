"""``.ci/links.py`` finds every kind of broken link, and accepts what is in order."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "links.py"


@pytest.fixture(scope="module")
def links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_links", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(directory: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (directory / f"{name}.html").write_text(text)
    return directory


def test_links_to_pages_anchors_and_other_hosts_are_accepted(links: ModuleType, tmp_path: Path) -> None:
    body = '<h1 id="top-heading">A</h1><a href="#top-heading"></a><a href="b.html#%C3%A9t%C3%A9"></a><img src="x.png">'
    site = write(tmp_path, a=body + '<a href="https://example.org/"></a><a href="mailto:x@y"></a>', b='<p id="été">')
    (tmp_path / "x.png").write_bytes(b"")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c.html").write_text('<a href="/b.html"></a><a href="../a.html#top-heading"></a>')

    assert links.main([str(site)]) == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('<a href="c.html">', "leads to no file"),
        ('<a href="/c.html">', "leads to no file"),
        ('<img src="figures/c.svg">', "leads to no file"),
        ('<picture><source srcset="figures/c.png"></picture>', "leads to no file"),
        ('<a href="b.html#nowhere">', "names no heading"),
        ('<a href="#nowhere">', "names no heading"),
        ('<script src="https://example.org/x.js"></script>', "asset of another host"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "asset of another host"),
    ],
)
def test_a_broken_link_is_named_with_its_page(
    links: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, says: str
) -> None:
    site = write(tmp_path, a=body, b="<p>")

    assert links.main([str(site)]) == 1
    assert f"{tmp_path / 'a.html'}: " in (printed := capsys.readouterr().out)
    assert says in printed


def test_a_style_that_loads_a_font_from_another_host_is_refused(links: ModuleType, tmp_path: Path) -> None:
    site = write(tmp_path, a="<p>")
    (tmp_path / "x.css").write_text("@font-face { src: url(https://example.org/f.woff2) }")

    assert links.main([str(site)]) == 1


def test_headings_of_markdown_pages_are_anchors(links: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("markdown")
    (tmp_path / "README.md").write_text("[good](guide.md#when-it-stops)\n")
    (tmp_path / "guide.md").write_text("## When it stops\n")
    assert links.main([str(tmp_path / "README.md")]) == 0

    (tmp_path / "OTHER.md").write_text("[bad](guide.md#when-it-starts)\n")
    assert links.main([str(tmp_path / "OTHER.md")]) == 1


def test_a_directory_without_pages_fails(links: ModuleType, tmp_path: Path) -> None:
    assert links.main([str(tmp_path)]) == 1
    assert links.main([str(tmp_path / "nowhere")]) == 2
