from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from chockstone.engine.config import StorageRules
from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill, paths_listed


def test_rm_removes_what_is_named_and_reports_what_is_not(asked: Loopback) -> None:
    run_id, paths = fill(asked, *"12345")

    dry = asked.run("checkpoints", "rm", paths[1], paths[3], "--dry-run")
    unasked = asked.run("checkpoints", "rm", paths[1])
    before = paths_listed(asked)
    done = asked.run("checkpoints", "rm", paths[1], paths[3], f"tinker://{run_id}/weights/6", "-y")

    assert (dry.exit_code, unasked.exit_code, done.exit_code) == (0, 2, 1)
    assert f"would remove {paths[1]}, " in dry.stdout
    assert "pass --yes" in unasked.stderr
    assert before == set(paths)
    assert f"removed {paths[3]}, " in done.stdout
    assert "weights/6' does not exist, or is not yours" in done.stderr
    assert paths_listed(asked) == {paths[0], paths[2], paths[4]}


def test_rm_removes_what_is_chosen(asked: Loopback) -> None:
    run_id, paths = fill(asked, "a", "b")
    _, others = fill(asked, "c")
    [kept] = [asked.wait(asked.user().save(run_id, "s", kind="sampler_weights", seq_id=100))]

    young = asked.json("checkpoints", "rm", "--older-than", "1h", "-y")
    done = asked.json("checkpoints", "rm", "--run", run_id, "--kind", "weights", "--older-than", "0.001s", "-y")

    assert young["removed"] == []
    assert {entry["tinker_path"] for entry in done["removed"]} == set(paths)
    assert paths_listed(asked) == {kept, *others}


def test_rm_of_everything_takes_a_word_and_names_what_is_published(
    asked: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, paths = fill(asked, "a", "b")
    _, others = fill(asked, "c")
    asked.run("checkpoints", "publish", paths[1])
    asked_for: list[str] = []

    def decline(lines: Iterable[str], question: str) -> bool:
        asked_for.extend([*lines, question])
        return False

    monkeypatch.setattr("chockstone.cli.remote.removal.is_confirmed", decline)
    declined = asked.run("checkpoints", "rm", "--all")
    before = paths_listed(asked)
    done = asked.json("checkpoints", "rm", "--all", "--kind", "weights", "-y")

    assert (declined.exit_code, before) == (0, {*paths, *others})
    assert [line for line in asked_for[:-1] if "published" in line] == [line for line in asked_for if paths[1] in line][
        :1
    ]
    assert re.fullmatch(rf"Remove 3 checkpoints, [\d.]+ kB, 1 of them published: {paths[1]}\?", asked_for[-1])
    assert {entry["tinker_path"] for entry in done["removed"]} == {*paths, *others}


def test_rm_of_what_another_published_says_that_it_is_not_yours(tmp_path: Path) -> None:
    with serve_on_loopback(tmp_path / "home", keys={"local": "tml-local", "bob": "tml-of-bob"}) as asked:
        run_id, [path] = fill(asked, "one")
        asked.run("checkpoints", "publish", path)

        results = [asked.run("checkpoints", "rm", path, *more, key="tml-of-bob") for more in (["-y"], ["--dry-run"])]
        of_run = asked.run("checkpoints", "rm", "--run", run_id, "-y", key="tml-of-bob")

        assert paths_listed(asked) == {path}
    for result in results:
        assert result.exit_code == 1
        assert "remove 1" not in result.stdout and "removed 1" not in result.stdout
        assert f"{path!r} belongs to another user, who published it" in result.stderr
    assert (of_run.exit_code, "`chockstone runs ls` shows yours" in of_run.stderr) == (1, True)


def test_rm_removes_an_undeleted_checkpoint_of_a_removed_run(tmp_path: Path) -> None:
    with serve_on_loopback(tmp_path / "home", rules=StorageRules(reserve_bytes=0, trash_seconds=3600.0)) as asked:
        run_id, paths = fill(asked, "a", "b")
        asked.run("checkpoints", "publish", paths[0])
        asked.run("runs", "rm", run_id, "-y")
        undeleted = [asked.run("trash", "undelete", path) for path in paths]

        by_path = asked.json("checkpoints", "rm", paths[0], "-y")
        by_run = asked.json("checkpoints", "rm", "--run", run_id, "-y")

        assert [result.exit_code for result in undeleted] == [0, 0]
        assert [entry["tinker_path"] for entry in (*by_path["removed"], *by_run["removed"])] == paths
        assert paths_listed(asked) == set()
