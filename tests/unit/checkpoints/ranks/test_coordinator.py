from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints import Admission, Checkpointer
from chockstone.checkpoints.ranks.coordinator import RankCoordinator
from chockstone.checkpoints.runtime.threads import has_low_priority
from chockstone.checkpoints.saving.job import SaveJob


@pytest.mark.parametrize(
    "arguments",
    [{"ranks": "some", "timeout_seconds": 1.0}, {"ranks": "auto", "timeout_seconds": 0.0}],
    ids=["ranks", "timeout"],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ranks=|rank_timeout_seconds="):
        RankCoordinator(**arguments)


@pytest.mark.parametrize("ranks", ["auto", "off"])
def test_a_process_without_peers_coordinates_nothing(ranks: Any) -> None:
    coordinator = RankCoordinator(ranks=ranks, timeout_seconds=1.0)

    assert not coordinator.connect()
    assert not coordinator.has_peers
    assert coordinator.rank_arguments() == {}
    coordinator.close()


def test_only_a_quick_plan_is_made_at_normal_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int | None, bool] = {}
    plan = SaveJob.plan

    def note_and_plan(job: SaveJob) -> Any:
        seen[job.request.step] = has_low_priority()
        return plan(job)

    monkeypatch.setattr(SaveJob, "plan", note_and_plan)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": 1}, step=1).result()
        checkpointer.save({"x": 1}, step=2).result()
        checkpointer.save({"x": 1}, step=3, admission=Admission(quota_bytes=10**9)).result()
        checkpointer._skipped.add("step-00000004")
        checkpointer.save({"x": 1}, step=4).result()

    assert seen == {1: True, 2: False, 3: True, 4: True}
