from __future__ import annotations

import re
from datetime import UTC, datetime

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill


def test_runs_are_listed_and_shown(asked: Loopback) -> None:
    run_id, [path] = fill(asked, "one", user_metadata={"note": "\x1b[31m"})

    listed, shown = asked.run("runs", "ls"), asked.run("runs", "show", run_id)

    assert re.search(rf"^{run_id} +tiny +LoRA 4 +\d+ s ago +active +weights/one$", listed.stdout, re.MULTILINE)
    assert re.search(r"^state +active$", shown.stdout, re.MULTILINE)
    assert re.search(r"^saved +1 checkpoint, [\d.]+ k?B$", shown.stdout, re.MULTILINE)
    assert path in shown.stdout
    assert asked.json("runs", "show", run_id)["checkpoints"][0]["tinker_path"] == path
    assert (asked.run("runs", "show", "nope").exit_code, asked.run("runs", "show", "a b").exit_code) == (1, 2)


def test_recoveries_are_told_newest_first_with_what_may_differ(asked: Loopback) -> None:
    run_id = asked.wait(asked.user().run())
    nothing = asked.run("runs", "recoveries", run_id)
    catalog, at = asked.served.engine.catalog, datetime.now(UTC)
    facts = {"run_id": run_id, "owner": "local", "at": at, "reason": "the worker died: signal 9"}
    skipped = [{"archive": "a/recovery/9.x", "reason": "bad\x1b[31m digest"}]
    asked.wait(catalog.recoveries.add(**facts, replayed=3, matched=3, seconds=1.25))
    asked.wait(
        catalog.recoveries.add(
            **facts,
            archive="a/recovery/0000000000000070.x",
            replayed=4,
            redone=1,
            matched=3,
            mismatched=1,
            skipped=skipped,
            notes=["another device"],
        )
    )

    told, document = asked.run("runs", "recoveries", run_id), asked.json("runs", "recoveries", run_id)

    assert (nothing.exit_code, "was never brought back" in nothing.stdout) == (0, True)
    lines = told.stdout.splitlines()
    assert re.match(
        r" *\d+ s ago  the worker died: signal 9  archive 70 +4 +1 +0.00 s  1 of 4 results differ$", lines[1]
    )
    assert re.match(r" *\d+ s ago  the worker died: signal 9  its beginning +3 +0 +1.25 s  the same$", lines[2])
    assert lines[3].endswith("Z: passed over a/recovery/9.x: bad\\x1b[31m digest")
    assert lines[4].endswith("Z: another device")
    assert [each["replayed"] for each in document["recoveries"]] == [4, 3]
    assert (document["training_run_id"], document["recoveries"][0]["skipped"]) == (run_id, skipped)
    assert asked.run("runs", "recoveries", "nope").exit_code == 1


def test_the_newest_checkpoint_of_a_run_may_be_of_any_kind(asked: Loopback) -> None:
    run_id, _ = fill(asked, "one")
    asked.wait(asked.user().save(run_id, "out", kind="external_weights", seq_id=100))

    assert asked.run("runs", "ls").stdout.rstrip().endswith("external_weights/out")
