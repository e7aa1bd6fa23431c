"""A rank that dies in a save leaves nothing visible; ranks also share the parts of one upload to S3."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp

from chockstone.checkpoints import Checkpointer
from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter
from support.loopback_s3 import ENVIRONMENT, make_bucket, s3_server
from support.rank_pool import RankPool

ELEMENTS = 3_000_000  # 12 MB: two parts of an upload


class Deadly(dcp.DefaultSavePlanner):
    """Kills its process when data is first asked for: all plans are made, and nothing is written."""

    def resolve_data(self, write_item: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def halves(rank: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    return {"weight": distribute_tensor(torch.arange(float(ELEMENTS)), mesh, [Shard(0)]), "step": 1}


def save_and_die(rank: int, store: str) -> str:
    state = halves(rank)
    dcp.save(state, storage_writer=ArchiveWriter(store, step=1))
    try:
        planner = Deadly() if rank == 1 else None
        dcp.save(state, storage_writer=ArchiveWriter(store, step=2), planner=planner)
    except BaseException as error:  # DCP's own is no Exception
        return str(error)
    return "saved without the other"


def test_a_rank_that_is_killed_in_a_save_leaves_nothing_visible(tmp_path: Path, ranks: RankPool) -> None:
    (is_good, said), died = ranks.outcomes(2, save_and_die, str(tmp_path))

    assert died == (False, "died")
    assert is_good
    assert said != "saved without the other"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["step-00000001.tar"]
    assert torch.equal(Checkpointer(tmp_path).load()["weight"], torch.arange(float(ELEMENTS)))


def save_and_load_on_s3(rank: int, endpoint: str) -> list[float]:
    os.environ.update(ENVIRONMENT | {"AWS_ENDPOINT_URL_S3": endpoint})
    state = halves(rank)
    dcp.save(state, storage_writer=ArchiveWriter("s3://bucket/run", step=1))
    target = {"weight": torch.zeros_like(state["weight"]), "step": 0}
    reader = ArchiveReader("s3://bucket/run")
    dcp.load(target, storage_reader=reader)
    assert target["step"] == 1
    local = target["weight"].to_local()
    assert torch.equal(local, state["weight"].to_local())
    return [local[0].item(), local[-1].item()]


def test_ranks_write_and_read_one_object_on_s3(ranks: RankPool) -> None:
    with s3_server() as endpoint:
        make_bucket(endpoint, "bucket")

        ends = ranks.run(2, save_and_load_on_s3, endpoint)

    assert ends == [[0.0, ELEMENTS / 2 - 1], [ELEMENTS / 2, ELEMENTS - 1]]
