from __future__ import annotations

from chockstone.console.navigation import GROUPS, visible_groups


def test_each_page_has_a_key_of_its_own() -> None:
    links = [link for _, group in GROUPS for link in group]

    assert len({link.key for link in links}) == len(links)
    assert len({link.path for link in links}) == len(links)


def test_pages_for_admins_are_shown_to_admins() -> None:
    everyone = {link.name for _, links in visible_groups(is_admin=False) for link in links}
    admins = {link.name for _, links in visible_groups(is_admin=True) for link in links}

    assert admins - everyone == {"users", "doctor"}
