"""The documentation site builds without a warning; its links, and those of README and CONTRIBUTING, lead somewhere."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINKS = ROOT / ".ci" / "links.py"
PUBLIC = {
    "chockstone.checkpoints": "checkpoints",
    "chockstone.checkpoints.resume": "resume",
    "chockstone.integrations.flyte": "integrations",
    "chockstone.integrations.flyte2": "integrations",
    "chockstone.trainers": "trainers",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``make docs`` builds it, in a directory of its own."""
    home = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples", "deploy"):  # a source outside of the project is refused
        shutil.copytree(ROOT / name, home / name)
    (home / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "zensical.toml", home)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=home, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in (done.stdout + done.stderr).lower(), done.stdout + done.stderr  # of mkdocstrings
    return home / "build" / "site"


def names_in_nav(entries: list[object]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        assert isinstance(entry, dict)
        for value in entry.values():
            found += names_in_nav(value) if isinstance(value, list) else [value]
    return found


def check(*paths: Path) -> None:
    done = subprocess.run([sys.executable, str(LINKS), *map(str, paths)], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path) -> None:
    check(site)


def test_links_of_the_pages_outside_of_the_site_lead_somewhere() -> None:
    check(*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")))


def test_every_page_is_in_the_navigation() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]

    listed = names_in_nav(config["nav"])

    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_every_public_name_is_on_its_page(site: Path) -> None:
    for module, page in PUBLIC.items():
        source = ROOT / "src" / module.replace(".", "/") / "__init__.py"
        [names] = re.findall(r"^__all__ = (\[.*?\])", source.read_text(), re.MULTILINE | re.DOTALL)
        html = (site / "reference" / "python" / f"{page}.html").read_text()

        found = set(re.findall(rf'id="{re.escape(module)}\.([\w.]+)"', html))

        assert [name for name in ast.literal_eval(names) if not {name, f"{name}.{name}"} & found] == [], module


def test_search_works_without_a_server(site: Path) -> None:
    index = (site / "search.js").read_text()

    assert "Checkpointer" in index
