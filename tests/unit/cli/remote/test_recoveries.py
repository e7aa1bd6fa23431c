from __future__ import annotations

import re
from datetime import UTC, datetime

from support.cli.loopback import Loopback

OPENING = {"sequence": 1, "command": "create_model", "reason": "no numbers"}
DIFFERENT = {"sequence": 72, "command": "optim_step", "reason": "other bytes"}


def test_recoveries_are_listed_newest_first_and_each_exception_is_named(asked: Loopback) -> None:
    run_id = asked.wait(asked.user().run())
    nothing = asked.run("runs", "recoveries", run_id)
    catalog, at = asked.served.engine.catalog, datetime.now(UTC)
    facts = {"run_id": run_id, "owner": "local", "at": at, "reason": "the worker died: signal 9"}
    skipped = [{"archive": "a/recovery/9.x", "reason": "bad\x1b[31m digest"}]
    asked.wait(catalog.recoveries.add(**facts, replayed=4, matched=3, seconds=1.25, uncompared=[OPENING]))
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
            differing=[DIFFERENT],
        )
    )

    told, document = asked.run("runs", "recoveries", run_id), asked.json("runs", "recoveries", run_id)

    assert (nothing.exit_code, "has had no recovery" in nothing.stdout) == (0, True)
    lines = told.stdout.splitlines()
    assert re.match(
        r" *\d+ s ago  archive 70 +4 +1 +0.00 s  3 identical, 1 different +the worker died: signal 9$", lines[1]
    )
    assert re.match(
        r" *\d+ s ago  start of the run +4 +0 +1.25 s  3 identical, 1 not compared +the worker died: signal 9$",
        lines[2],
    )
    assert lines[3].endswith("Z: skipped archive a/recovery/9.x: bad\\x1b[31m digest")
    assert lines[4].endswith("Z: 1 different: operation 72 (optim_step): other bytes")
    assert lines[5].endswith("Z: another device")
    assert lines[6].endswith("Z: 1 not compared: operation 1 (create_model): no numbers")
    assert [each["replayed"] for each in document["recoveries"]] == [4, 4]
    assert (document["training_run_id"], document["recoveries"][0]["skipped"]) == (run_id, skipped)
    assert asked.run("runs", "recoveries", "nope").exit_code == 1


def test_a_receipt_of_an_earlier_version_is_explained_as_far_as_it_goes(asked: Loopback) -> None:
    run_id = asked.wait(asked.user().run())
    facts = {"run_id": run_id, "owner": "local", "at": datetime.now(UTC), "reason": "restarted"}
    asked.wait(asked.served.engine.catalog.recoveries.add(**facts, replayed=175, matched=174))

    lines = asked.run("runs", "recoveries", run_id).stdout.splitlines()

    assert lines[1].endswith("174 identical, 1 not compared  restarted")
    assert "1 not compared: operations that return no numbers" in lines[2]
