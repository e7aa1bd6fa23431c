"""``dcp.save`` and ``dcp.async_save`` of one process write archives that the library reads."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from chockstone.checkpoints import Archive, Checkpointer, Retention
from chockstone.checkpoints.errors import CheckpointExists, InvalidName, UnstorableValue
from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def cause_of(error: CheckpointException) -> BaseException:
    return error.failures[0][0]


def test_an_archive_has_the_same_state_tree_as_one_of_the_checkpointer(tmp_path: Path) -> None:
    state = {
        "model": {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(3, dtype=torch.bfloat16)},
        "optimizer": {"state": {"w": {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": ["w"]}]},
        "rng": ("MT19937", np.arange(5)),
        "step": 7,
        "note": "text",
        "nothing": None,
    }

    dcp.save(state, storage_writer=ArchiveWriter(tmp_path, name="dcp", metrics={"loss": 0.5}))
    Checkpointer(tmp_path).save(state, name="ours").result()

    with Archive.open(tmp_path / "dcp.tar") as one, Archive.open(tmp_path / "ours.tar") as other:
        assert one.state() == other.state()
        assert one.members.keys() == other.members.keys()
        assert one.manifest.metrics == {"loss": 0.5}


def test_names_steps_and_prefixes_are_those_of_the_checkpointer(tmp_path: Path) -> None:
    state = {"weight": torch.ones(2)}
    dcp.save(state, storage_writer=ArchiveWriter(tmp_path, prefix="run", step=3))
    writer = ArchiveWriter(tmp_path, prefix="run", retention=Retention(keep_last=3))
    for name in ("step-00000004", "step-5", "last"):
        dcp.save(state, checkpoint_id=name, storage_writer=writer)

    checkpoints = Checkpointer(tmp_path, prefix="run").checkpoints()

    assert [(one.name, one.manifest.step) for one in checkpoints if one.manifest] == [
        ("run/step-00000004", 4),
        ("run/step-5", 5),
        ("run/last", None),
    ]
    assert writer.saved is not None
    assert writer.saved.name == "run/last"
    assert [removal.name for removal in writer.saved.removed] == ["run/step-00000003"]


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException) as unnamed:
        dcp.save({"a": 1}, storage_writer=ArchiveWriter(tmp_path))
    assert "a checkpoint needs a name" in str(cause_of(unnamed.value))
    with pytest.raises(InvalidName):
        ArchiveWriter(tmp_path, name="../outside")
    with pytest.raises(CheckpointException) as unstorable:
        dcp.save({"outer": {"inner": [1, object()]}}, storage_writer=ArchiveWriter(tmp_path, name="x"))
    assert isinstance(cause_of(unstorable.value), UnstorableValue)
    assert "outer.inner[1]: <builtins.object> cannot be stored" in str(cause_of(unstorable.value))
    dcp.save({"a": 1}, storage_writer=ArchiveWriter(tmp_path, name="x"))
    with pytest.raises(CheckpointException) as twice:
        dcp.save({"a": 2}, storage_writer=ArchiveWriter(tmp_path, name="x"))
    assert isinstance(cause_of(twice.value), CheckpointExists)
    dcp.save({"a": 3}, storage_writer=ArchiveWriter(tmp_path, name="x", overwrite=True))

    assert Checkpointer(tmp_path).load(name="x") == {"a": 3}
    assert ArchiveWriter.validate_checkpoint_id("run/step-1")
    assert not ArchiveWriter.validate_checkpoint_id("/absolute")


def test_tied_tensors_are_stored_once(tmp_path: Path) -> None:
    shared = torch.arange(1000.0)

    dcp.save({"model": {"embed": shared, "head": shared}}, storage_writer=ArchiveWriter(tmp_path, name="tied"))
    target = {"model": {"embed": torch.zeros(1000), "head": torch.zeros(1000)}}
    dcp.load(target, storage_reader=ArchiveReader(tmp_path, name="tied"))

    with Archive.open(tmp_path / "tied.tar") as archive:
        assert len(list(archive.all_tensors())) == 1
    assert torch.equal(target["model"]["embed"], shared)
    assert torch.equal(target["model"]["head"], shared)


class Doubling(dcp.DefaultSavePlanner):
    """A planner of a user's own: saves the double of every tensor, and values of its own making."""

    def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002  # DCP's name
        changed = super().transform_object(write_item, object)
        return changed * 2 if isinstance(changed, torch.Tensor) else changed


def test_planners_of_users_decide_what_is_saved(tmp_path: Path) -> None:
    state = {"weight": torch.ones(3), "step": 4, "nested": {"list": [1, "a"]}}

    dcp.save(state, storage_writer=ArchiveWriter(tmp_path, name="doubled"), planner=Doubling())
    flat = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(state, storage_writer=ArchiveWriter(tmp_path, name="flat"), planner=flat)

    loaded = Checkpointer(tmp_path).load(name="doubled")
    assert torch.equal(loaded["weight"], torch.full((3,), 2.0))
    assert loaded["step"] == 4
    assert loaded["nested"] == {"list": [1, "a"]}
    target: dict[str, Any] = {"weight": torch.zeros(3), "nested": {"list": [0]}}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(target, storage_reader=ArchiveReader(tmp_path, name="flat"), planner=planner)
    assert target["nested"] == {"list": [1, "a"]}
    assert torch.equal(target["weight"], torch.ones(3))


def test_cached_plans_of_the_planner_save_the_new_values(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        state = {"weight": torch.full((4,), float(step)), "step": step}
        dcp.save(state, storage_writer=ArchiveWriter(tmp_path, step=step), planner=planner)

    for step in (1, 2, 3):
        loaded = Checkpointer(tmp_path).load(name=f"step-{step:08d}")
        assert torch.equal(loaded["weight"], torch.full((4,), float(step)))
        assert loaded["step"] == step


def test_values_keep_their_types(tmp_path: Path) -> None:
    values = {
        "tuple": (1, 2.5, "x"),
        "set": {1, 2},
        "bytes": b"\x00\xff",
        "none": None,
        "ordered": OrderedDict(b=1, a=2),
        "array": np.arange(3, dtype=np.int16),
        "dtype": torch.float16,
        "nan": float("inf"),
        "pair": (torch.arange(3), [torch.ones(2)]),
    }

    dcp.save(values, storage_writer=ArchiveWriter(tmp_path, name="values"))
    target = {name: None for name in values if name != "ordered"} | {"ordered": OrderedDict(b=0, a=0)}
    dcp.load(target, storage_reader=ArchiveReader(tmp_path, name="values"))

    for name in ("tuple", "set", "bytes", "none", "ordered", "dtype", "nan"):
        assert target[name] == values[name], name
        assert type(target[name]) is type(values[name]), name
    assert np.array_equal(target["array"], values["array"])  # type: ignore[arg-type]  # restored above
    assert torch.equal(target["pair"][0], torch.arange(3))  # type: ignore[index]  # restored above
    assert b"torch" not in (tmp_path / "values.tar").read_bytes().replace(b"torch.dtype", b""), "nothing is pickled"


def test_a_writer_can_be_sent_to_another_process(tmp_path: Path) -> None:
    writer = pickle.loads(pickle.dumps(ArchiveWriter(tmp_path, name="sent", retention=Retention(keep_last=1))))

    dcp.save({"weight": torch.ones(2)}, storage_writer=writer)

    assert Checkpointer(tmp_path).load(name="sent").keys() == {"weight"}


@pytest.fixture
def world_of_one(tmp_path: Path) -> Any:
    from torch import distributed
    from torch.distributed.checkpoint import _async_process_executor

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    _async_process_executor._CHECKPOINT_PROCESS = None  # its finalizer ends the process
    distributed.destroy_process_group()


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("kind", list(AsyncCheckpointerType))
def test_async_saves_write_what_the_state_was_at_the_call(
    tmp_path: Path, kind: AsyncCheckpointerType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    weight = torch.arange(100_000.0)
    writer = ArchiveWriter(tmp_path, name="async")

    future = dcp.async_save({"weight": weight, "step": 1}, storage_writer=writer, async_checkpointer_type=kind)
    weight.zero_()
    getattr(future, "upload_completion", future).result(timeout=100)

    target = {"weight": torch.zeros(100_000), "step": 0}
    dcp.load(target, storage_reader=ArchiveReader(tmp_path, name="async"))
    assert torch.equal(target["weight"], torch.arange(100_000.0))
    assert target["step"] == 1
