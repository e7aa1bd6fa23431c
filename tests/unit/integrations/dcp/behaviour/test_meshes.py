"""What some ranks save with ``dcp.save``, any number of ranks loads with ``dcp.load``, however either shards it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from chockstone.checkpoints import Checkpointer
from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter
from support.rank_pool import RankPool

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

LARGE = 700_000  # elements: several blocks, of which ranks share some


def wholes() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "large": torch.randn(700, LARGE // 700, generator=generator),
        "uneven": torch.randn(7, 5, generator=generator),
        "few": torch.randn(1, 3, generator=generator),
        "cube": torch.randn(6, 10, 9, generator=generator).bfloat16(),
        "scalar": torch.randn((), generator=generator),
        "none": torch.empty(0, 3),
    }


def sharded(sizes: tuple[int, ...], dimension: int, *, is_target: bool = False) -> dict[str, Any]:
    """All tensors on a mesh of these sizes: sharded along ``dimension`` and then along the first, or replicated."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", sizes)
    made: dict[str, Any] = {}
    for name, whole in wholes().items():
        content = torch.zeros_like(whole) if is_target else whole
        wanted = [Shard(min(dimension, whole.dim() - 1)), Shard(0)][: len(sizes)]
        placements = wanted if whole.dim() else [Replicate()] * len(sizes)
        made[name] = distribute_tensor(content, mesh, placements)
    made["replicated"] = distribute_tensor(
        torch.zeros(9, 4) if is_target else torch.arange(36.0).reshape(9, 4), mesh, [Replicate()] * len(sizes)
    )
    return made


def check(found: dict[str, Any]) -> None:
    for name, whole in {**wholes(), "replicated": torch.arange(36.0).reshape(9, 4)}.items():
        tensor = found[name]
        assert torch.equal(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor, whole), name


def save(rank: int, store: str, sizes: tuple[int, ...], dimension: int) -> None:
    state = {
        "model": sharded(sizes, dimension),
        "plain": torch.arange(5),
        "step": 3,
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}, {"lr": 0.2, "betas": (0.8, 0.9)}],
        f"of rank {rank}": {"seed": rank, "state": ("MT", torch.full((2,), rank))},
    }
    dcp.save(state, storage_writer=ArchiveWriter(store, name="saved"))


def load(rank: int, store: str, sizes: tuple[int, ...], dimension: int) -> None:
    state = {"model": sharded(sizes, dimension, is_target=True), "plain": torch.zeros(5, dtype=torch.int64), "step": 0}
    reader = ArchiveReader(store, name="saved")

    dcp.load(state, storage_reader=reader)

    check(state["model"])
    assert torch.equal(state["plain"], torch.arange(5))
    assert state["step"] == 3
    assert reader.receipt is not None
    assert reader.receipt.name == "saved"


@pytest.mark.parametrize(("sizes", "dimension"), [((4,), 0), ((3,), 1), ((2, 2), 1)], ids=["rows", "columns", "both"])
def test_any_mesh_loads_what_another_saved(
    tmp_path: Path, ranks: RankPool, sizes: tuple[int, ...], dimension: int
) -> None:
    world_size = torch.Size(sizes).numel()
    ranks.run(world_size, save, str(tmp_path), sizes, dimension)

    ranks.run(2, load, str(tmp_path), (2,), 0)
    ranks.run(3, load, str(tmp_path), (3,), 1)
    loaded = Checkpointer(tmp_path).load(name="saved")

    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["saved.tar"]
    check(loaded["model"])
    assert loaded["groups"] == [{"lr": 0.1, "betas": (0.9, 0.99)}, {"lr": 0.2, "betas": (0.8, 0.9)}]
    assert Checkpointer(tmp_path).verify("saved") > 0
    for rank in range(world_size):
        assert loaded[f"of rank {rank}"]["seed"] == rank
        assert torch.equal(loaded[f"of rank {rank}"]["state"][1], torch.full((2,), rank))


def save_in_subgroup(rank: int, store: str) -> None:
    from torch import distributed

    group = distributed.new_group([1, 2])
    if rank in (1, 2):
        state = {"weight": torch.arange(8.0), f"own {rank}": rank}
        dcp.save(state, storage_writer=ArchiveWriter(store, name="part"), process_group=group)
        target = {"weight": torch.zeros(8)}
        dcp.load(target, storage_reader=ArchiveReader(store, name="part"), process_group=group)
        assert torch.equal(target["weight"], torch.arange(8.0))
    if rank == 0:
        dcp.save({"alone": torch.ones(2)}, storage_writer=ArchiveWriter(store, name="alone"), no_dist=True)
    distributed.barrier()


def test_a_subgroup_and_a_single_rank_save_by_themselves(tmp_path: Path, ranks: RankPool) -> None:
    ranks.run(3, save_in_subgroup, str(tmp_path))

    assert Checkpointer(tmp_path).load(name="part").keys() == {"weight", "own 1", "own 2"}
    assert Checkpointer(tmp_path).load(name="alone").keys() == {"alone"}


def save_on_a_part_of_the_ranks(rank: int, store: str) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, zeros

    mesh = DeviceMesh("cpu", [0, 2])
    state: dict[str, Any] = {
        "sharded": zeros(6, device_mesh=mesh, placements=[Shard(0)]),
        "replicated": zeros(3, device_mesh=mesh, placements=[Replicate()]),
        "extra": {"number": 1, "tensor": torch.ones(1)},
    }
    if rank != 1:
        state["sharded"].to_local().fill_(rank + 1.0)
        state["replicated"].to_local().fill_(7.0)
    dcp.save(state, storage_writer=ArchiveWriter(store, name="part"))
    for tensor in (state["sharded"], state["replicated"], state["extra"]["tensor"]):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        local.zero_()
    dcp.load(state, storage_reader=ArchiveReader(store, name="part"))
    if rank != 1:
        assert torch.equal(state["sharded"].to_local(), torch.full((3,), rank + 1.0))
        assert torch.equal(state["replicated"].to_local(), torch.full((3,), 7.0))
    assert torch.equal(state["extra"]["tensor"], torch.ones(1))
    distributed.barrier()


def test_tensors_of_a_part_of_the_ranks_are_saved_by_them(tmp_path: Path, ranks: RankPool) -> None:
    ranks.run(3, save_on_a_part_of_the_ranks, str(tmp_path))

    loaded = Checkpointer(tmp_path).load(name="part")
    assert loaded["sharded"].tolist() == [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]
    assert loaded["replicated"].tolist() == [7.0, 7.0, 7.0]


def save_what_differs(rank: int, store: str) -> list[str]:
    """Saves that fail on one rank, and one that does not after them. Returns the errors."""
    from torch.distributed.checkpoint.api import CheckpointException

    said = []
    for state in ({"size": rank, f"bad {rank}": object()}, {f"bad {rank}": object() if rank else 1}):
        try:
            dcp.save(state, storage_writer=ArchiveWriter(store, name="bad"))
        except CheckpointException as error:
            said.append(str(error))
    dcp.save({"weight": torch.ones(3)}, storage_writer=ArchiveWriter(store, name="good"))
    return said


def test_a_value_that_cannot_be_stored_is_named_on_all_ranks_and_nothing_is_visible(
    tmp_path: Path, ranks: RankPool
) -> None:
    for said in ranks.run(2, save_what_differs, str(tmp_path)):
        assert "bad 1: <builtins.object> cannot be stored" in said[0], "of the rank that noticed it first"
        assert "bad 1: <builtins.object> cannot be stored" in said[1]

    assert [one.name for one in Checkpointer(tmp_path).checkpoints()] == ["good"]
