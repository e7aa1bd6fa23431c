from __future__ import annotations

import re

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill


def test_runs_are_listed_and_shown(asked: Loopback) -> None:
    run_id, [path] = fill(asked, "one", user_metadata={"note": "\x1b[31m"})

    listed, shown = asked.run("runs", "ls"), asked.run("runs", "show", run_id)

    assert re.search(rf"^{run_id[:8]} +tiny +0 +\d+ s ago +active$", listed.stdout, re.MULTILINE)
    assert re.search(rf"^{run_id} +tiny", asked.run("runs", "ls", "--full-ids").stdout, re.MULTILINE)
    assert re.search(r"^state +active$", shown.stdout, re.MULTILINE)
    assert re.search(r"^saved +1 checkpoint, [\d.]+ k?B$", shown.stdout, re.MULTILINE)
    assert path in shown.stdout
    assert asked.json("runs", "show", run_id)["checkpoints"][0]["tinker_path"] == path
    assert (asked.run("runs", "show", "nope").exit_code, asked.run("runs", "show", "a b").exit_code) == (1, 2)


def test_a_run_shows_its_step_its_last_loss_and_what_it_was_made_from(asked: Loopback) -> None:
    user = asked.user()
    first, [path] = fill(asked, "start")
    second = asked.wait(user.run())
    asked.wait(user.result("load_weights", {"model_id": second, "seq_id": 1, "path": path, "optimizer": True}))
    between = asked.wait(user.save(second, "between", seq_id=2))
    third = asked.wait(user.run())
    asked.wait(user.result("load_weights", {"model_id": third, "seq_id": 1, "path": between, "optimizer": True}))
    live = asked.served.engine.runs.get(third)
    assert live is not None
    live.note_step(1234)
    live.note_loss(0.123456)

    listed, shown = asked.run("runs", "ls").stdout, asked.run("runs", "show", third[:8]).stdout
    document = asked.json("runs", "show", third)

    newest = listed.splitlines()[1]
    assert re.match(rf"{third[:8]} +tiny +1,234 +0.12346 +\d+ s ago +active +{second[:8]}$", newest)
    assert max(map(len, listed.splitlines())) <= 80
    assert re.search(rf"^made from +{between}\n +{path}$", shown, re.MULTILINE)
    assert re.search(r"^last loss +0.12346 ", shown, re.MULTILINE)
    assert (document["steps"], document["parent"], document["lineage"]) == (1234, between, [between, path])
    asked.run("runs", "rm", first, "--yes")
    assert f"{path}, of a run that is deleted or not yours" in asked.run("runs", "show", third).stdout


def test_a_run_lists_its_checkpoints_of_all_kinds_newest_first(asked: Loopback) -> None:
    run_id, _ = fill(asked, "one")
    asked.wait(asked.user().save(run_id, "out", kind="external_weights", seq_id=100))

    shown = asked.run("runs", "show", run_id).stdout

    assert shown.index("external_weights/out") < shown.index("weights/one")
