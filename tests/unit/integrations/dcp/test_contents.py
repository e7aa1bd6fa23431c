"""Contents name everything in an archive as DCP's planner names it."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

from chockstone.checkpoints import Archive, Checkpointer
from chockstone.checkpoints.restoring.destinations import RestoreDestinations
from chockstone.integrations.dcp.contents import ArchiveContents, replace_leaves


def contents_of(path: Path, *, is_flat: bool) -> ArchiveContents:
    with Archive.open(path) as archive:
        return ArchiveContents.of(archive, RestoreDestinations(archive), is_flat=is_flat)


def test_names_paths_and_shapes_are_those_of_the_planner(tmp_path: Path) -> None:
    shared = torch.ones(2, 3)
    state = {
        "model": OrderedDict(weight=shared, tied=shared),
        "optimizer": {"state": {0: {"step": torch.tensor(1)}}, "param_groups": [{"lr": 0.1}]},
        "pair": (torch.ones(1), 2),
        "array": np.arange(3),
    }
    Checkpointer(tmp_path).save(state, name="x").result()

    contents = contents_of(tmp_path / "x.tar", is_flat=True)
    metadata = contents.metadata()

    assert contents.tensors.keys() == {"model.weight", "model.tied", "optimizer.state.0.step"}
    assert contents.values.keys() == {"optimizer.param_groups.0.lr", "pair", "array"}
    assert contents.paths["optimizer.param_groups.0.lr"] == ("optimizer", "param_groups", 0, "lr")
    weight = metadata.state_dict_metadata["model.weight"]
    assert isinstance(weight, TensorStorageMetadata)
    assert (weight.size, weight.properties.dtype) == (torch.Size([2, 3]), torch.float32)
    assert [tuple(chunk.sizes) for chunk in weight.chunks] == [(2, 3)]
    assert isinstance(metadata.state_dict_metadata["pair"], BytesStorageMetadata)


def test_a_state_that_was_not_flattened_has_its_top_level_names(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save({"model": {"weight": torch.ones(2)}, "bias": torch.ones(1)}, name="x").result()

    contents = contents_of(tmp_path / "x.tar", is_flat=False)

    assert contents.tensors.keys() == {"bias"}
    assert contents.values.keys() == {"model"}
    assert contents.metadata().planner_data is None


def test_leaves_are_replaced_in_containers_of_the_same_type() -> None:
    module_state = OrderedDict(w=torch.ones(1))
    module_state._metadata = {"version": 1}  # type: ignore[attr-defined]  # nn.Module's own habit
    value = {"list": [torch.ones(1), (torch.ones(2), "x")], "module": module_state, "size": torch.Size([2])}

    replaced = replace_leaves(value, lambda _: "tensor")

    assert replaced == {"list": ["tensor", ("tensor", "x")], "module": {"w": "tensor"}, "size": torch.Size([2])}
    assert type(replaced["module"]) is OrderedDict
    assert replaced["module"]._metadata == {"version": 1}
    assert type(replaced["size"]) is torch.Size
