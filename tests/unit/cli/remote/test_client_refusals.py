from __future__ import annotations

import json
from pathlib import Path

from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill


def test_another_user_and_a_wrong_key(tmp_path: Path) -> None:
    with serve_on_loopback(tmp_path / "home", keys={"local": "tml-local", "bob": "tml-of-bob"}) as asked:
        _, [path] = fill(asked, "one")

        assert asked.json("checkpoints", "ls", key="tml-of-bob")["checkpoints"] == []
        foreign = asked.run("checkpoints", "rm", path, "-y", key="tml-of-bob")
        wrong = asked.run("checkpoints", "ls", key="tml-wrong")
        forbidden = asked.run("policy", "set", "--global", "--keep-last", "1", key="tml-of-bob")
        asked.run("checkpoints", "publish", path)
        shared = asked.json("checkpoints", "show", path, key="tml-of-bob")

    assert (foreign.exit_code, wrong.exit_code, forbidden.exit_code) == (1, 3, 3)
    assert "key is not known" in wrong.stderr
    assert "only admins" in forbidden.stderr
    assert shared["tinker_path"] == path


def test_no_server_is_told_with_what_to_start(tmp_path: Path) -> None:
    loopback = Loopback("http://127.0.0.1:9", Path(), None, None)  # type: ignore[arg-type]  # nothing is served

    for words in (["runs", "ls"], ["checkpoints", "ls"], ["storage"]):
        result = loopback.run(*words)
        assert result.exit_code == 3
        assert "no server answers at http://127.0.0.1:9: " in result.stderr
        assert "`chockstone serve`" in result.stderr
    document = json.loads(loopback.run("runs", "ls", "--json").stdout)
    assert document["error"]["kind"] == "ServerUnreachable"
