"""``dcp.load`` reads archives of either writer, verifies them, and walks back past damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from chockstone.checkpoints import Archive, Checkpointer
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, RestoreMismatch
from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter
from support.rank_pool import RankPool

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")


def flip_a_bit(path: Path, key: str) -> None:
    """In the middle of a tensor."""
    with Archive.open(path) as archive:
        tensor = next(tensor for tensor in archive.all_tensors() if tensor.entry.key == key)
        place = tensor.offset + tensor.entry.size // 2
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


SIZE = 200_000  # the state stands in another block than the middle of the tensor


def save_steps(store: Path, *steps: int, size: int = SIZE) -> None:
    for step in steps:
        state = {"model": {"weight": torch.full((size,), float(step))}, "step": step}
        dcp.save(state, storage_writer=ArchiveWriter(store, prefix="run", step=step))


def target() -> dict[str, Any]:
    return {"model": {"weight": torch.zeros(SIZE)}, "step": 0}


def test_a_model_and_its_optimizer_come_back_exactly(tmp_path: Path) -> None:
    def make(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            model(torch.randn(4, 5)).sum().backward()
            optimizer.step()
        return model, optimizer

    model, optimizer = make(1)
    saved, saved_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": saved, "optimizer": saved_optimizer}, storage_writer=ArchiveWriter(tmp_path, step=2))
    other, other_optimizer = make(2)
    into, into_optimizer = get_state_dict(other, other_optimizer)
    state = {"model": into, "optimizer": into_optimizer}
    dcp.load(state, storage_reader=ArchiveReader(tmp_path))
    set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    batch = torch.randn(4, 5)
    for each, each_optimizer in ((model, optimizer), (other, other_optimizer)):
        each_optimizer.zero_grad()
        each(batch).sum().backward()
        each_optimizer.step()
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_an_archive_of_the_checkpointer_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    Checkpointer(tmp_path).save({"model": model, "optimizer": optimizer, "step": 1}, step=1).result()

    state = {"model": torch.nn.Linear(3, 4).state_dict(), "optimizer": {"state": {"0": {"momentum_buffer": None}}}}
    state["optimizer"]["state"]["0"]["momentum_buffer"] = torch.zeros(4, 3)
    dcp.load(state, storage_reader=ArchiveReader(tmp_path))

    assert torch.equal(state["model"]["weight"], model.weight)
    momentum = optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(state["optimizer"]["state"]["0"]["momentum_buffer"], momentum)


def test_tensors_of_other_dtypes_and_strides_are_converted_as_dcp_does(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    dcp.save({"weight": whole, "turned": whole.t()}, storage_writer=ArchiveWriter(tmp_path, name="x"))
    state = {"weight": torch.zeros(3, 4, dtype=torch.float64), "turned": torch.zeros(3, 4).t()}

    dcp.load(state, storage_reader=ArchiveReader(tmp_path, name="x"))

    assert torch.equal(state["weight"], whole.double())
    assert torch.equal(state["turned"], whole.t())


def test_a_flipped_bit_costs_one_interval_and_is_reported(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3)
    flip_a_bit(tmp_path / "run" / "step-00000003.tar", "weight")
    reader = ArchiveReader(tmp_path, prefix="run")
    state = target()

    dcp.load(state, storage_reader=reader)

    assert state["step"] == 2
    assert torch.equal(state["model"]["weight"], torch.full((SIZE,), 2.0))
    assert reader.receipt is not None
    assert [skipped.name for skipped in reader.receipt.skipped] == ["run/step-00000003"]
    assert reader.receipt.steps_lost == 1
    with pytest.raises(CheckpointException) as named:
        dcp.load(target(), checkpoint_id="step-00000003", storage_reader=ArchiveReader(tmp_path, prefix="run"))
    assert isinstance(named.value.failures[0][0], DamagedArchive)


def load_past_damage(rank: int, store: str) -> tuple[int, list[str], float]:
    """Each rank has half of the tensor, and the damage is in the second half."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    state: dict[str, Any] = {
        "model": {"weight": distribute_tensor(torch.zeros(1_000_000), mesh, [Shard(0)])},
        "step": 0,
    }
    reader = ArchiveReader(store, prefix="run")
    dcp.load(state, storage_reader=reader)
    assert reader.receipt is not None
    local = state["model"]["weight"].to_local()
    assert torch.equal(local, torch.full((500_000,), local[0].item()))
    return state["step"], [skipped.name for skipped in reader.receipt.skipped], local[0].item()


def test_all_ranks_walk_back_when_one_of_them_reads_damage(tmp_path: Path, ranks: RankPool) -> None:
    save_steps(tmp_path, 1, 2, size=1_000_000)
    path = tmp_path / "run" / "step-00000002.tar"
    with Archive.open(path) as archive:
        tensor = next(iter(archive.all_tensors()))
    with path.open("r+b") as file:
        file.seek(tensor.offset + tensor.entry.size - 8)
        file.write(b"\xff\xff\xff\xff")

    assert ranks.run(2, load_past_damage, str(tmp_path)) == [(1, ["run/step-00000002"], 1.0)] * 2


def test_an_older_checkpoint_of_another_structure_is_not_loaded_into_the_plan_of_a_newer(tmp_path: Path) -> None:
    dcp.save({"model": {"other": torch.ones(3)}}, storage_writer=ArchiveWriter(tmp_path, prefix="run", step=1))
    save_steps(tmp_path, 2)
    flip_a_bit(tmp_path / "run" / "step-00000002.tar", "weight")

    with pytest.raises(CheckpointException) as refused:
        dcp.load(target(), storage_reader=ArchiveReader(tmp_path, prefix="run"))
    assert "half restored" in str(refused.value.failures[0][0])


def test_a_first_start_is_told_apart_from_damage(tmp_path: Path) -> None:
    reader = ArchiveReader(tmp_path, prefix="run")
    assert reader.latest() is None

    save_steps(tmp_path, 1)
    assert reader.latest() == "run/step-00000001"
    with pytest.raises(CheckpointMissing, match="only of kind 'weights'"):
        ArchiveReader(tmp_path, prefix="run", kind="other").latest()
    assert ArchiveReader(tmp_path, prefix="run", name="step-00000009").latest() is None

    path = tmp_path / "run" / "step-00000001.tar"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DamagedArchive):
        reader.latest()


def test_what_the_state_wants_and_the_archive_lacks_is_named(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)

    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: model\.bias"):
        dcp.load({"model": {"bias": torch.ones(2)}}, storage_reader=ArchiveReader(tmp_path, prefix="run"))
    with pytest.raises(CheckpointException, match="Size mismatch"):
        dcp.load({"model": {"weight": torch.ones(2)}}, storage_reader=ArchiveReader(tmp_path, prefix="run"))
    state = {"model": {"weight": torch.zeros(SIZE), "bias": torch.ones(2)}}
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, storage_reader=ArchiveReader(tmp_path, prefix="run"), planner=planner)
    assert torch.equal(state["model"]["weight"], torch.ones(SIZE))


def test_whole_states_are_rebuilt_without_a_target(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    save_steps(tmp_path, 4)

    state = _load_state_dict_from_keys(storage_reader=ArchiveReader(tmp_path, prefix="run"))

    assert state["step"] == 4
    assert torch.equal(state["model"]["weight"], torch.full((SIZE,), 4.0))


def test_the_error_of_a_mismatch_survives_the_way_to_other_ranks() -> None:
    import pickle

    sent = pickle.loads(pickle.dumps(RestoreMismatch("text", missing=("a",))))

    assert (str(sent), sent.missing) == ("text", ("a",))
