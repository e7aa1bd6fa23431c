from __future__ import annotations

import re
from pathlib import Path

from chockstone.checkpoints import Retention
from chockstone.engine.config import StorageRules
from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill, paths_listed


def test_policies_are_set_shown_applied_and_removed(asked: Loopback) -> None:
    run_id, paths = fill(asked, *"1234")

    words = ["--keep-last", "1", "--keep-best", "loss:min:2", "--ttl", "2w", "--pin", "2", "--quota", "5GB"]
    set_ = asked.run("policy", "set", "--run", run_id, *words)
    shown = asked.run("policy", "show")
    dry = asked.run("checkpoints", "gc", "--dry-run")
    before = paths_listed(asked)
    done = asked.json("checkpoints", "gc", "--run", run_id)

    spelled = "--keep-last 1 --keep-best loss:min:2 --ttl 14d --pin 2 --quota 5GB"
    assert set_.stdout.splitlines()[0] == f"run:{run_id}: {spelled}"
    assert re.search(rf"^run:{run_id} +{spelled} +local$", shown.stdout, re.MULTILINE)
    assert re.search(r"^\(default\) +keep everything +serve options$", shown.stdout, re.MULTILINE)
    assert re.search(rf"^would remove +{paths[0]} +[\d.]+ kB +\S", dry.stdout, re.MULTILINE)
    assert before == set(paths)
    assert {entry["tinker_path"] for entry in done["removed"]} == {paths[0], paths[2]}
    assert paths_listed(asked) == {paths[1], paths[3]}
    assert asked.run("policy", "remove", "--run", run_id).exit_code == 0
    assert asked.run("policy", "remove", "--run", run_id).exit_code == 1


def test_a_policy_is_seen_before_it_is_set(asked: Loopback) -> None:
    run_id, paths = fill(asked, *"1234")
    words = ["--run", run_id, "--keep-last", "1"]

    dry = asked.run("policy", "set", *words, "--dry-run")
    same = asked.run("checkpoints", "gc", *words, "--dry-run")
    mine = asked.json("checkpoints", "gc", "--keep-last", "3", "--dry-run")

    assert dry.exit_code == 0
    for path in paths[:3]:
        assert re.search(rf"^would remove +{path} +[\d.]+ kB +\S", dry.stdout, re.MULTILINE)
    assert "would remove 3 checkpoints, " in dry.stdout
    assert dry.stdout.endswith("dry run: no policy was changed\n")
    assert same.stdout == dry.stdout
    assert [entry["tinker_path"] for entry in mine["removed"]] == paths[:1]
    assert asked.json("policy", "show")["policies"] == []
    assert paths_listed(asked) == set(paths)

    set_ = asked.run("policy", "set", *words)
    unset = asked.run("policy", "remove", "--run", run_id, "--dry-run")
    asked.run("checkpoints", "gc")

    assert re.search(r"^the next sweep removes 3 checkpoints, [\d.]+ kB; ", set_.stdout, re.MULTILINE)
    assert "would remove 0 checkpoints" in unset.stdout
    assert paths_listed(asked) == set(paths[3:])
    again = asked.run("policy", "set", *words)
    assert "the next sweep removes no checkpoint of this scope" in again.stdout


def test_rules_and_quotas_of_the_start_are_shown(tmp_path: Path) -> None:
    rules = StorageRules(Retention(keep_last=9, ttl_seconds=3600), user_quota_bytes=10**9, run_quota_bytes=10**8)
    with serve_on_loopback(tmp_path / "home", rules=rules) as asked:
        shown = asked.run("policy", "show").stdout

    options = "--keep-last 9 --checkpoint-ttl 1h --user-quota 1GB --run-quota 100MB"
    assert re.search(rf"^\(default\) +{options} +serve options$", shown, re.MULTILINE)
