from __future__ import annotations

import re

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill, flip


def test_verify_has_the_server_read_and_the_damage_is_listed(asked: Loopback) -> None:
    run_id, [good, bad] = fill(asked, "good", "bad")
    flip(asked.archive(bad))

    first = asked.run("checkpoints", "verify", good)
    both = asked.run("checkpoints", "verify", "--run", run_id)

    assert (first.exit_code, first.stdout) == (0, f"{good}: ok\n")
    assert both.exit_code == 1
    assert re.search(rf"^{bad}: damaged: ", both.stdout, re.MULTILINE)
    assert "2 checkpoints: 1 ok, 1 damaged" in both.stdout
    assert re.search(rf"^{bad} .* damaged: ", asked.run("checkpoints", "ls").stdout, re.MULTILINE)
    assert asked.run("checkpoints", "show", bad).exit_code == 1
    gone = asked.json("checkpoints", "verify", f"tinker://{run_id}/weights/gone")
    assert [entry["state"] for entry in gone["checkpoints"]] == ["missing"]


def test_verifying_nothing_is_a_failure_that_says_so(asked: Loopback) -> None:
    everything = asked.run("checkpoints", "verify")
    run_id, _ = fill(asked)
    of_run = asked.run("checkpoints", "verify", "--run", run_id)

    assert (everything.exit_code, of_run.exit_code) == (1, 1)
    assert f"nothing was verified: {asked.url} has no checkpoint" in everything.stderr
    assert f"nothing was verified: run {run_id} has no checkpoint" in of_run.stderr
