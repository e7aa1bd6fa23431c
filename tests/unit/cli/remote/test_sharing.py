from __future__ import annotations

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill, paths_listed


def test_sharing_and_lifetimes(asked: Loopback) -> None:
    _, [path] = fill(asked, "one")

    asked.run("checkpoints", "publish", path)
    assert asked.json("checkpoints", "show", path)["public"]
    asked.run("checkpoints", "unpublish", path)
    assert not asked.json("checkpoints", "show", path)["public"]
    assert asked.json("checkpoints", "ttl", path, "7d")["expires_at"] is not None
    assert asked.run("checkpoints", "ttl", path, "none").stdout == f"{path} never expires\n"
    short = asked.run("checkpoints", "ttl", path, "5s")
    copy = asked.run("checkpoints", "copy", path).stdout.strip()

    assert (short.exit_code, "3600" in short.stderr) == (2, True)
    assert copy != path
    assert paths_listed(asked) == {path, copy}
