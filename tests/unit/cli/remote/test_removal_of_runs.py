from __future__ import annotations

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill, paths_listed


def test_a_run_is_removed_with_its_checkpoints_and_nothing_else(asked: Loopback) -> None:
    run_id, [one, two] = fill(asked, "one", "two")
    other, [kept] = fill(asked, "kept")
    asked.run("checkpoints", "publish", one)

    unconfirmed = asked.run("runs", "rm", run_id)
    dry = asked.run("runs", "rm", run_id, "--dry-run")
    before = paths_listed(asked)
    removed = asked.run("runs", "rm", run_id[:12], "--yes")

    assert (unconfirmed.exit_code, "standard input is not a terminal" in unconfirmed.stderr) == (2, True)
    assert dry.stdout.startswith(f"would remove {run_id}  2 checkpoints, ")
    assert "1 of them published, still loaded" in dry.stdout
    assert before == {one, two, kept}
    assert (removed.exit_code, removed.stdout.startswith(f"removed {run_id}  2 checkpoints")) == (0, True)
    assert paths_listed(asked) == {kept}
    assert [run["training_run_id"] for run in asked.json("runs", "ls")["training_runs"]] == [other]
    assert asked.run("runs", "show", run_id).exit_code == 1
    assert asked.run("trash", "undelete", two).exit_code == 0
    assert paths_listed(asked) == {two, kept}


def test_a_run_that_does_not_exist_is_reported_and_the_others_are_removed(asked: Loopback) -> None:
    run_id, _ = fill(asked, "one")

    result = asked.json("runs", "rm", "nope", run_id, "--yes")

    assert (result["missing"], [each["training_run_id"] for each in result["removed"]]) == (["nope"], [run_id])
    assert asked.run("runs", "rm", "nope", "--yes").exit_code == 1
