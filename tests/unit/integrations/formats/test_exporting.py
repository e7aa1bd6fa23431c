from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from chockstone.checkpoints import Archive, Checkpointer, open_store
from chockstone.checkpoints.errors import DamagedArchive, ExportRefused
from chockstone.checkpoints.file_archive import write_files
from chockstone.integrations.formats.exporting import TargetFormat, export_checkpoint
from support.cli.store_commands import flip
from support.integrations.foreign import same, training_state


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save(training_state(), step=5)
    with Archive(open_store(tmp_path / "store").open("step-00000005")) as opened:
        yield opened


def test_torch_opens_the_exported_file(archive: Archive, tmp_path: Path) -> None:
    exported = export_checkpoint(archive, tmp_path / "out.pt", "torch")

    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert same(loaded["model"], training_state()["model"])
    assert exported.files == (("out.pt", (tmp_path / "out.pt").stat().st_size),)
    assert exported.notes == (
        "1 of type frozenset stored as a set",
        "1 of type numpy array stored as a tensor",
        "1 of type numpy number stored as a tensor",
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_loads_the_exported_directory(archive: Archive, tmp_path: Path) -> None:
    state = training_state()

    export_checkpoint(archive, tmp_path / "out", "dcp")

    target: dict[str, Any] = {
        "model": {name: torch.zeros_like(value) for name, value in state["model"].items()},
        "epoch": 0,
        "half": torch.zeros(3, 2, dtype=torch.bfloat16),
    }
    dcp.load(target, checkpoint_id=str(tmp_path / "out"), no_dist=True)
    assert same(target["model"], dict(state["model"]))
    assert (target["epoch"], same(target["half"], state["half"].contiguous())) == (3, True)


def test_safetensors_takes_the_model_and_names_the_rest(archive: Archive, tmp_path: Path) -> None:
    exported = export_checkpoint(archive, tmp_path / "model.safetensors", "safetensors")

    assert exported.notes == ("left out: optimizer, rng, epoch, losses, names, scale, half, note, nothing",)


@pytest.mark.parametrize("to", ["torch", "dcp", "safetensors"])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, to: TargetFormat) -> None:
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save({"model": {"w": torch.ones(100_000)}}, step=5)
    flip(tmp_path / "store/step-00000005.tar")

    with (
        pytest.raises(DamagedArchive),
        Archive(open_store(tmp_path / "store").open("step-00000005"), verify="full") as archive,
    ):
        export_checkpoint(archive, tmp_path / "out", to)

    assert os.listdir(tmp_path) == ["store"]


def test_what_exists_and_archives_of_files_are_refused(archive: Archive, tmp_path: Path) -> None:
    store = open_store(tmp_path / "files")
    write_files(store, "a", {"x.txt": b"x"}, created_at=datetime.now(UTC))

    with pytest.raises(ExportRefused, match="exists already"):
        export_checkpoint(archive, tmp_path, "dcp")
    with Archive(store.open("a")) as files, pytest.raises(ExportRefused, match="--to files"):
        export_checkpoint(files, tmp_path / "out", "torch")
