from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest
from pydantic import ValidationError

from chockstone.wire.messages.operations.server import DiskReport, ProblemReport, WorkerReport

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_what_is_unknown_is_left_out() -> None:
    disk = DiskReport(free_bytes=1, total_bytes=2, used_bytes=1, reserve_bytes=0)
    worker = WorkerReport(state="starting", since=NOW, generation=0, restarts=0)

    assert orjson.loads(disk.encode()) == {"free_bytes": 1, "total_bytes": 2, "used_bytes": 1, "reserve_bytes": 0}
    assert orjson.loads(worker.encode()) == {
        "state": "starting",
        "since": "2030-01-01T00:00:00Z",
        "generation": 0,
        "restarts": 0,
        "gpus": [],
        "replicas": [],
    }


def test_a_problem_is_of_a_known_kind() -> None:
    with pytest.raises(ValidationError):
        ProblemReport(kind="bad_weather", what="It rains.", to_do="Wait.", since=NOW)  # type: ignore[arg-type]  # on purpose
