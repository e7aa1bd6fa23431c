"""What is exported and imported again is the same checkpoint, bits and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.checkpoints import Archive, Checkpointer, open_store
from chockstone.integrations.formats.exporting import TargetFormat, export_checkpoint
from chockstone.integrations.formats.importing import import_checkpoint
from support.cli.store_commands import run
from support.integrations.foreign import same, training_state

OUT = {"torch": "out.pt", "safetensors": "out.safetensors", "dcp": "out"}


def exported_and_imported(tmp_path: Path, state: dict[str, Any], to: TargetFormat) -> dict[str, Any]:
    """The state after a save, an export and an import."""
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save(state, name="original").result()
    with Archive(open_store(tmp_path / "store").open("original"), verify="full") as archive:
        export_checkpoint(archive, tmp_path / OUT[to], to)
    import_checkpoint(tmp_path / OUT[to], tmp_path / "store", name="again")
    with Checkpointer(tmp_path / "store") as checkpointer:
        return checkpointer.load(name="again")


def test_a_torch_file_keeps_every_bit_and_type(tmp_path: Path) -> None:
    state = training_state()

    again = exported_and_imported(tmp_path, state, "torch")

    assert same(again, state | {"half": state["half"].contiguous()})
    assert again["model"]._metadata == state["model"]._metadata
    assert run("diff", tmp_path / "store", "original", "again").exit_code == 0


def test_safetensors_keep_every_bit_of_the_model(tmp_path: Path) -> None:
    state = {"model": dict(training_state()["model"])}

    again = exported_and_imported(tmp_path, state, "safetensors")

    assert same(dict(sorted(again["model"].items())), dict(sorted(state["model"].items())))
    assert again["model"]["2.weight"].data_ptr() == again["model"]["3.weight"].data_ptr()


def test_a_dcp_directory_keeps_every_bit_and_type(tmp_path: Path) -> None:
    state = training_state() | {"empty": {}, "mixed": {1: (torch.ones(2), "x"), None: [{}]}}

    again = exported_and_imported(tmp_path, state, "dcp")

    assert same(again, state | {"half": state["half"].contiguous()})
    assert run("diff", tmp_path / "store", "original", "again").exit_code == 0


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e8m0fnu", "complex32", "uint16", "bool", "float64"])
def test_unusual_element_types_survive_torch_files(tmp_path: Path, dtype: str) -> None:
    content = torch.arange(16, dtype=torch.uint8)
    tensor = content.view(getattr(torch, dtype)) if dtype != "bool" else content % 2 == 0

    again = exported_and_imported(tmp_path, {"model": {"w": tensor}}, "torch")

    assert same(again["model"]["w"], tensor)
