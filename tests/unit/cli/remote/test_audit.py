from __future__ import annotations

import re
from datetime import UTC, datetime

from support.cli.loopback import Loopback
from support.cli.remote_commands import fill


def test_the_audit_is_listed_by_day_run_and_number(asked: Loopback) -> None:
    empty = asked.run("audit")
    run_id, [one, _] = fill(asked, "one", "two")
    other, _ = fill(asked, "three")
    asked.run("checkpoints", "rm", one, "--yes")

    listed, last = asked.run("audit"), asked.run("audit", "--last", "1")
    of_run = asked.json("audit", "--run", run_id)

    assert (empty.exit_code, empty.stdout) == (0, "no audit entries\n")
    assert re.search(
        rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d +checkpoint_deleted +local +{one}", listed.stdout, re.MULTILINE
    )
    assert re.search(r"^1 of \d+ entries; --last 0 lists all$", last.stdout, re.MULTILINE)
    assert len(last.stdout.splitlines()) == 3
    assert {entry["model_id"] for entry in of_run["entries"]} == {run_id}
    assert other not in str(of_run)
    today = datetime.now(UTC).date().isoformat()
    assert asked.json("audit", "--day", today)["total_count"] + asked.json("audit", "--day", "2020-01-01")[
        "total_count"
    ] == (len(asked.json("audit", "--last", "0")["entries"]))
    assert asked.run("audit", "--day", "yesterday").exit_code == 2
