"""A directory that several ranks wrote with DCP itself is read whole by one process."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed import checkpoint as dcp

from chockstone.integrations.formats import read_dcp_directory
from support.integrations.foreign import same
from support.rank_pool import RankPool


def save_sharded(rank: int, path: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (3,))
    whole = torch.arange(70.0).reshape(10, 7)
    state = {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "all": distribute_tensor(whole, mesh, [Replicate()]),
        "few": distribute_tensor(whole[:1], mesh, [Shard(0)]),  # two ranks have none of it
        "step": 4,
    }
    dcp.save(state, checkpoint_id=path)


def test_shards_of_several_ranks_are_put_together(tmp_path: Path, ranks: RankPool) -> None:
    ranks.run(3, save_sharded, str(tmp_path / "dcp"))

    whole = torch.arange(70.0).reshape(10, 7)
    wanted = {"rows": whole, "columns": whole, "all": whole, "few": whole[:1], "step": 4}
    found = read_dcp_directory(tmp_path / "dcp")
    assert same(dict(sorted(found.items())), dict(sorted(wanted.items())))
