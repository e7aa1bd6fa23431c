from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.directories import read_dcp, read_safetensors_directory
from chockstone.integrations.formats.reading.mapped_files import SourceDirectory
from support.integrations.foreign import same, training_state


def test_a_model_directory_is_taken_with_its_configuration(tmp_path: Path) -> None:
    from support.tiny_models import tiny_model

    model = tiny_model()
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    (tmp_path / "model/state.json").write_text("{}")
    (tmp_path / "model/code.py").write_text("import os")
    (tmp_path / "model/link.json").symlink_to("/etc/passwd")

    found = read_safetensors_directory(SourceDirectory(tmp_path / "model"))

    assert same(dict(sorted(found.state["model"].items())), dict(sorted(model.state_dict().items())))
    assert found.evidence == "model.safetensors.index.json"
    assert sorted(found.files) == ["config.json", "generation_config.json"]
    assert sorted(left.source for left in found.left_out) == ["code.py", "link.json", "state.json"]


def test_several_models_in_one_directory_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    save_file({"w": torch.ones(1)}, tmp_path / "b.safetensors")

    with pytest.raises(ImportRefused, match="which of them"):
        read_safetensors_directory(SourceDirectory(tmp_path))


def save_dcp(state: dict[str, Any], path: Path) -> None:
    dcp.save(state, checkpoint_id=str(path), no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_dcp_directory_is_read_and_its_links_are_refused(tmp_path: Path) -> None:
    state = {key: training_state()[key] for key in ("model", "optimizer", "epoch", "note")}
    save_dcp(state, tmp_path / "step-30")
    (tmp_path / "step-30/meta.pt").write_bytes(b"x")

    found = read_dcp(SourceDirectory(tmp_path / "step-30"))

    assert same(dict(found.state["model"]), dict(state["model"]))
    assert same(found.state["optimizer"]["state"], state["optimizer"]["state"])  # with numbers as keys
    assert found.state["epoch"] == 3
    assert found.step == 30
    assert [left.source for left in found.left_out] == ["meta.pt"]
    shard = next((tmp_path / "step-30").glob("*.distcp"))
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ImportRefused, match="is a link"):
        read_dcp(SourceDirectory(tmp_path / "step-30"))
