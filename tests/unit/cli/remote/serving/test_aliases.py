from __future__ import annotations

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill


def test_an_alias_is_set_listed_undone_and_removed(asked: Loopback) -> None:
    _, [one, two] = fill(asked, "one", "two")

    assert asked.run("alias", "set", "prod", one).stdout == f"prod -> {one}\n"
    assert asked.run("alias", "set", "prod", two).stdout == f"prod -> {two}\n"
    assert asked.run("alias", "undo", "prod").stdout == f"prod -> {one}\n"
    assert one in asked.run("alias", "ls").stdout
    refused = asked.run("checkpoints", "rm", one, "-y")
    assert refused.exit_code != 0
    assert "alias 'prod' points at it" in refused.stderr
    assert asked.run("alias", "rm", "prod").stdout.startswith("removed prod")
    assert asked.run("alias", "ls").stdout.startswith("no aliases")
    changes = asked.json("alias", "history", "prod")["changes"]
    assert [change["action"] for change in changes] == ["remove", "undo", "set", "set"]
    assert two in asked.run("alias", "history", "prod").stdout
    assert asked.run("alias", "rm", "prod").exit_code == 1


def test_an_alias_says_whether_conversations_are_stored(asked: Loopback) -> None:
    _, [one, two] = fill(asked, "one", "two")

    assert asked.run("alias", "set", "--store", "prod", one).stdout == f"prod -> {one}, conversations are stored\n"
    assert asked.run("alias", "set", "prod", two).stdout == f"prod -> {two}, conversations are stored\n"
    assert asked.json("alias", "ls")["aliases"][0]["store"] is True
    assert asked.run("alias", "set", "--no-store", "prod", two).stdout == f"prod -> {two}\n"
    assert asked.json("alias", "ls")["aliases"][0]["store"] is False
