from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.recognition import SeveralCheckpoints, find_checkpoints, read_foreign


def test_files_are_recognised_by_their_content_whatever_their_names(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "b.pt")
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6", "global_step": 9}, tmp_path / "c")

    found = [read_foreign(tmp_path / name) for name in ("a.safetensors", "b.pt", "c")]

    assert [each.format for each in found] == ["torch", "safetensors", "lightning"]
    assert found[2].step == 9


def test_what_is_no_checkpoint_is_refused_with_advice(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    (tmp_path / "b.pkl").write_bytes(b"\x80\x04N.")
    (tmp_path / "c.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "d").write_bytes(b"hello world, this is text")
    tarfile.open(tmp_path / "e.tar", "w").close()
    with tarfile.open(tmp_path / "e.tar", "w") as tar:
        tar.add(tmp_path / "d", arcname="d")
    (tmp_path / "f").mkdir()
    complaints = {
        "a.npz": "not a checkpoint of a known format",
        "b.pkl": "plain pickle",
        "c.h5": "HDF5",
        "d": "not a checkpoint of a known format",
        "e.tar": "is a tar",
        "f": "it holds nothing",
        "missing": "there is no",
    }

    for name, complaint in complaints.items():
        with pytest.raises(ImportRefused, match=complaint):
            read_foreign(tmp_path / name)


def test_a_format_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")

    for name, complaint in {"dcp": "format of directories", "lightning": "not of Lightning"}.items():
        with pytest.raises(ImportRefused, match=complaint):
            read_foreign(tmp_path / "a.pt", name)  # type: ignore[arg-type]  # each is one of the literals
    with pytest.raises(ImportRefused, match="format of single files"):
        read_foreign(tmp_path, "torch")


def test_a_directory_of_several_checkpoints_lists_them_by_step(tmp_path: Path) -> None:
    for name in ("checkpoint-1000", "checkpoint-500"):
        (tmp_path / name).mkdir()
        save_file({"w": torch.ones(2)}, tmp_path / name / "model.safetensors")
    (tmp_path / "checkpoint-700").mkdir()  # empty
    (tmp_path / "logs").mkdir()
    (tmp_path / "last").symlink_to("checkpoint-1000")

    with pytest.raises(SeveralCheckpoints, match="pass --all") as several:
        read_foreign(tmp_path)

    assert several.value.names == ("checkpoint-1000", "checkpoint-500")
    assert [path.name for path in find_checkpoints(tmp_path)] == ["checkpoint-500", "checkpoint-1000"]
