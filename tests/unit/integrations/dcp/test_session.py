"""Sessions outlive writers, and end with the process group that they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter, release_buffers
from chockstone.integrations.dcp.session import RankPlan, common_plan, session_of
from support.rank_pool import RankPool

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@dataclass
class Plan:
    storage_data: Any


def test_the_coordinator_tells_all_ranks_who_takes_part() -> None:
    assert common_plan([Plan(RankPlan((5,)))]) == RankPlan(())
    assert common_plan([Plan(RankPlan((4,))), Plan(RankPlan((2,)))]) == RankPlan((4, 2))
    assert common_plan([Plan(None), Plan(RankPlan((1,)))]) == RankPlan((0, 1)), "a planner dropped what was added"


def test_saves_share_a_session_and_its_memory_can_be_freed(tmp_path: Path) -> None:
    session = session_of((), timeout_seconds=1)
    dcp.save({"weight": torch.ones(1000)}, storage_writer=ArchiveWriter(tmp_path, name="one"))
    before = session.snapshotter

    release_buffers()

    assert session_of((), timeout_seconds=1) is session
    assert session.snapshotter is not before
    dcp.save({"weight": torch.ones(1000)}, storage_writer=ArchiveWriter(tmp_path, name="two"))
    target = {"weight": torch.zeros(1000)}
    dcp.load(target, storage_reader=ArchiveReader(tmp_path, name="two"))
    assert torch.equal(target["weight"], torch.ones(1000))


def save_in_two_worlds(rank: int, store: str, meeting: str) -> bool:
    """The process group is replaced, as a framework does that restarts its workers in place."""
    from torch import distributed

    dcp.save({"step": 1}, storage_writer=ArchiveWriter(store, name="first"))
    dcp.save({"step": 1}, storage_writer=ArchiveWriter(store, name="again"))
    first = session_of((0, 1), timeout_seconds=60)
    distributed.destroy_process_group()
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    dcp.save({"step": 2}, storage_writer=ArchiveWriter(store, name="second"))
    return session_of((0, 1), timeout_seconds=60) is not first


def test_a_new_process_group_gets_a_new_session(tmp_path: Path, ranks: RankPool) -> None:
    assert ranks.run(2, save_in_two_worlds, str(tmp_path / "store"), str(tmp_path / "meeting")) == [True, True]
