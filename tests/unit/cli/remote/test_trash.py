from __future__ import annotations

import re
from pathlib import Path

from chockstone.engine.config import StorageRules
from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill


def test_the_trash_is_listed_undeleted_from_and_emptied(asked: Loopback) -> None:
    run_id, [one, two] = fill(asked, "one", "two")
    asked.run("checkpoints", "rm", one, two, "-y")

    listed = asked.run("trash")
    undeleted = asked.run("trash", "undelete", one)
    entry = asked.json("trash")["entries"][0]
    renamed = asked.json("trash", "undelete", entry["trash_id"], "--as", "again")

    assert re.search(rf"^ +\d+ +{two} +[\d.]+ kB +\d+ s ago +\d+ min +deleted", listed.stdout, re.MULTILINE)
    assert undeleted.stdout == f"undeleted {one}\nretention rules spare it for 1h\n"
    assert (renamed["was"], renamed["tinker_path"]) == (two, f"tinker://{run_id}/weights/again")
    assert asked.run("trash", "undelete", one).exit_code == 1
    assert asked.run("trash", "undelete", "nonsense").exit_code == 2
    asked.run("checkpoints", "rm", one, "-y")
    dry = asked.run("trash", "empty", "--dry-run")
    assert (f"would remove {one}" in dry.stdout, len(asked.json("trash")["entries"])) == (True, 1)
    assert asked.run("trash", "empty").exit_code == 2
    assert asked.json("trash", "empty", "-y")["freed_bytes"] > 0
    assert asked.run("trash").stdout == "the trash is empty\n"


def test_a_server_without_trash_says_so(tmp_path: Path) -> None:
    with serve_on_loopback(tmp_path / "home", rules=StorageRules()) as asked:
        _, [path] = fill(asked, "one")
        asked.run("checkpoints", "rm", path, "-y")

        listed = asked.run("trash")
        emptied = asked.run("trash", "empty", "-y")
        undeleted = [asked.run("trash", "undelete", word) for word in (path, "1")]

    for text in (listed.stdout, emptied.stdout, *(result.stderr for result in undeleted)):
        assert (
            "this server has no trash: it deletes checkpoints for good. Start it with `chockstone serve --trash 7d`"
            in text
        )
    assert [result.exit_code for result in undeleted] == [1, 1]


def test_what_a_live_sampler_uses_stays_in_the_trash_and_is_named(asked: Loopback) -> None:
    run_id, [used, unused] = fill(asked, "used", "unused", kind="sampler_weights")
    sampling = {"session_id": run_id.partition(":")[0], "sampling_session_seq_id": 0, "model_path": used}
    assert asked.wait(asked.user().http.post("create_sampling_session", json=sampling)).status_code == 200
    asked.run("checkpoints", "rm", used, unused, "-y")

    dry = asked.run("trash", "empty", "--dry-run")
    done = asked.run("trash", "empty", "-y")

    assert f"would stay {used}: a live sampler uses it until its session ends" in dry.stdout
    assert f"would remove {used}" not in dry.stdout
    assert f"stays {used}: a live sampler uses it until its session ends" in done.stdout
    assert unused not in done.stdout
    assert [entry["tinker_path"] for entry in asked.json("trash")["entries"]] == [used]


def test_undelete_under_a_taken_name_says_how_to_have_another(asked: Loopback) -> None:
    run_id, [path] = fill(asked, "one")
    asked.wait(asked.user().save(run_id, "one", overwrite=True, seq_id=100))

    taken = asked.run("trash", "undelete", path)
    renamed = asked.run("trash", "undelete", path, "--as", "older")

    assert (taken.exit_code, "undelete under another name, with --as NAME" in taken.stderr) == (2, True)
    assert renamed.stdout.splitlines()[0] == f"undeleted {path} as tinker://{run_id}/weights/older"
