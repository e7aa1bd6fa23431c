"""Every Python block of README and docs runs, in the order of its page, in an empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopback_s3 import make_bucket, s3_server, set_environment

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#]+)")


def with_code() -> list[Path]:
    return [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Pages that speak of S3 find their bucket on loopback."""
    with s3_server() as url:
        make_bucket(url, "my-bucket")
        yield url


@pytest.mark.parametrize("page", with_code(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_the_page_runs(page: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(BLOCK.findall(page.read_text()))
    set_environment(monkeypatch, bucket)

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ)
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_on_the_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []
