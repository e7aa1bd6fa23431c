from __future__ import annotations

import re
from pathlib import Path

from chockstone.checkpoints import Retention
from chockstone.engine.config import StorageRules
from support.cli.loopback import serve_on_loopback
from support.cli.remote_commands import fill


def test_storage_draws_who_uses_how_much(tmp_path: Path) -> None:
    rules = StorageRules(user_quota_bytes=10**9, trash_seconds=60.0, retention=Retention(keep_last=9))
    with serve_on_loopback(tmp_path / "home", rules=rules) as asked:
        run_id, [one, _] = fill(asked, "one", "two")
        asked.run("checkpoints", "rm", one, "-y")

        shown, document = asked.run("storage").stdout, asked.json("storage")

    assert re.search(r"^[\d.]+ kB in 1 checkpoint$", shown, re.MULTILINE)
    assert re.search(r"^quota  1.0 GB, 1.0 GB left$", shown, re.MULTILINE)
    assert re.search(r"^trash  [\d.]+ kB in 1 checkpoint$", shown, re.MULTILINE)
    assert re.search(r"^local  ▏ +[\d.]+ kB of 1.0 GB, 0%, 1 checkpoint$", shown, re.MULTILINE)
    assert re.search(rf"^{run_id} tiny  █+  +[\d.]+ kB, 1 checkpoint$", shown, re.MULTILINE)
    assert document["runs"][0]["run_id"] == run_id
