"""Directories of DCP itself are read without running code of theirs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, ForeignArchive
from chockstone.integrations.dcp import list_dcp_directory, read_dcp_directory
from support.rank_pool import RankPool

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def sample_state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(40, 30, generator=generator)
    return {
        "model": {"weight": weight, "turned": weight.t(), "half": weight.bfloat16(), "one": torch.tensor(3.5)},
        "optimizer": {"groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "state": {"0": {"step": torch.tensor(7)}}},
        "empty": torch.empty(0, 4),
        "step": 12,
        "note": "plain",
    }


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    else:
        assert found == wanted


def test_a_directory_of_one_process_comes_back_nested_as_it_was_saved(tmp_path: Path) -> None:
    dcp.save(sample_state(), checkpoint_id=tmp_path / "dcp", no_dist=True)

    assert_same(read_dcp_directory(tmp_path / "dcp"), sample_state())
    assert list_dcp_directory(tmp_path / "dcp")["model.half"] == (torch.bfloat16, (40, 30))
    assert list_dcp_directory(tmp_path / "dcp")["step"] is None


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
    assert_same(read_dcp_directory(tmp_path / "dcp"), wanted)


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_metadata_that_names_other_classes_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({}, planner_data=Trap(tmp_path / "sprung"))))

    with pytest.raises(ForeignArchive, match="no part of DCP's metadata"):
        read_dcp_directory(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_metadata_cannot_set_attributes_of_a_class(tmp_path: Path) -> None:
    dcp.save(sample_state(), checkpoint_id=tmp_path / "dcp", no_dist=True)
    before = dict(vars(Metadata))
    name = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    (tmp_path / "dcp" / ".metadata").write_bytes(name + pickle.dumps((None, {"evil": 1}), 0)[:-1] + b"b.")

    with pytest.raises(ForeignArchive, match="sets attributes"):
        read_dcp_directory(tmp_path / "dcp")
    assert dict(vars(Metadata)).keys() == before.keys()


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    dcp.save({"x": torch.ones(3)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    data = next((tmp_path / "dcp").glob("*.distcp"))
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedArchive, match="cannot be read"):
        read_dcp_directory(tmp_path / "dcp")
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(DamagedArchive, match="not a regular file"):
        read_dcp_directory(tmp_path / "dcp")


def test_a_pickled_value_is_refused_by_its_name_and_not_run(tmp_path: Path) -> None:
    dcp.save({"trap": Trap(tmp_path / "sprung")}, checkpoint_id=tmp_path / "dcp", no_dist=True)

    with pytest.raises(CheckpointError, match="trap: this value can only be read by running code"):
        read_dcp_directory(tmp_path / "dcp")
    assert not (tmp_path / "sprung").exists()


def rewrite_metadata(directory: Path, **changes: Any) -> None:
    """Change what the metadata says of the place of every item."""
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        vars(info).update(changes)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "folder/file"])
def test_items_outside_the_directory_are_refused(tmp_path: Path, place: str) -> None:
    dcp.save({"weight": torch.ones(3)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    rewrite_metadata(tmp_path / "dcp", relative_path=place)

    with pytest.raises(DamagedArchive, match="outside the directory"):
        read_dcp_directory(tmp_path / "dcp")


def test_missing_short_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ForeignArchive, match=r"has no file '\.metadata'"):
        read_dcp_directory(tmp_path)
    dcp.save({"weight": torch.ones(300)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    data = tmp_path / "dcp" / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(DamagedArchive, match="weight: the file '__0_0.distcp' is shorter"):
        read_dcp_directory(tmp_path / "dcp")
    data.unlink()
    with pytest.raises(DamagedArchive, match="weight: the file '__0_0.distcp' is missing"):
        read_dcp_directory(tmp_path / "dcp")
    (tmp_path / "dcp" / ".metadata").write_bytes(b"\x80\x04garbage")
    with pytest.raises(CheckpointError):
        read_dcp_directory(tmp_path / "dcp")


def test_a_chunk_that_is_missing_is_noticed(tmp_path: Path) -> None:
    dcp.save({"weight": torch.ones(6)}, checkpoint_id=tmp_path, no_dist=True)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    metadata.state_dict_metadata["weight"].chunks.clear()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))

    with pytest.raises(DamagedArchive, match="the chunks of 'weight' are not the whole tensor"):
        read_dcp_directory(tmp_path)
