"""Documentation, changelog, examples and `--help` are written in plain words: retired phrases stay away.

`docs/reference/command-line.md` holds the `--help` of every command; another test holds that it is up to date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for name in ("examples", "deploy") for path in (ROOT / name).iterdir() if path.is_file()),
]
RETIRED: Final = {
    r"whoever|nobody|somebody": "name the person, the process or the program",
    r"told|tells of": "name the event: acknowledged, answered, logged, reported",
    r"go(?:es|ing)? on|went on": "continue, resume",
    r"(?:of|those|ones) before(?=[.,;:)])": "earlier, previous",
    r"br(?:ings?|ought) back|put(?:s|ting)? back in": "recover, restore, undelete",
    r"for want of": "because … is short",
    r"pkill(?: -\w+)* -f": "kill processes by their id",
    r"(?<=[.:;] )What (?:is|was|are|were|has|had|cannot|must)\b(?![^.]*\?)": "begin with the subject",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_uses_no_retired_phrase(page: Path) -> None:
    text = " ".join(page.read_text().split())

    found = {
        text[max(0, match.start() - 40) : match.end() + 20]: f"use instead: {instead}"
        for phrase, instead in RETIRED.items()
        for match in re.finditer(rf"\b(?:{phrase})", text, re.IGNORECASE if phrase.islower() else 0)
    }

    assert not found
