"""Navigation: the pages that every page links to, with the keys that open them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PageLink:
    name: str  # of the page's file and template, and of its icon
    label: str
    path: str  # below the console
    key: str  # ``g`` and then this key opens the page
    for_admins: bool = False


GROUPS: Final[tuple[tuple[str, tuple[PageLink, ...]], ...]] = (
    (
        "Train",
        (
            PageLink("overview", "Overview", "", "o"),
            PageLink("runs", "Runs", "/runs", "r"),
            PageLink("compare", "Compare", "/compare", "c"),
            PageLink("playground", "Playground", "/playground", "p"),
        ),
    ),
    (
        "Store",
        (
            PageLink("checkpoints", "Checkpoints", "/checkpoints", "k"),
            PageLink("storage", "Storage", "/storage", "s"),
        ),
    ),
    (
        "Operate",
        (
            PageLink("samplers", "Samplers and workers", "/samplers", "w"),
            PageLink("users", "Users and keys", "/users", "u", for_admins=True),
            PageLink("audit", "Audit", "/audit", "a"),
            PageLink("doctor", "Doctor", "/doctor", "d", for_admins=True),
        ),
    ),
)


def visible_groups(*, is_admin: bool) -> list[tuple[str, list[PageLink]]]:
    """The links that a user may open. Pages for admins refuse others by themselves."""
    shown = [(title, [link for link in links if is_admin or not link.for_admins]) for title, links in GROUPS]
    return [(title, links) for title, links in shown if links]
