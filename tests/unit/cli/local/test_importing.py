from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chockstone.checkpoints import Checkpointer
from support.cli.store_commands import PROGRAM, run, run_json
from support.integrations.foreign import Executes, trained


@pytest.fixture
def old(tmp_path: Path) -> Path:
    module, optimizer = trained()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "old.pt")
    return tmp_path / "old.pt"


def test_import_prints_what_it_recognised_and_stored_in_80_columns(old: Path, tmp_path: Path) -> None:
    result = run("import", old, tmp_path / "store", "--prefix", "run-1", "--step", "1000")

    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "old.pt: torch (torch.save of a dict)"
    assert lines[1].split() == ["FROM", "STORED", "AS", "TENSORS", "SIZE"]
    assert lines[2].split()[:3] == ["old.pt", "model", "8"]
    assert lines[-1].startswith("stored as run-1/step-00001000 in ")
    assert all(len(line) <= 80 for line in lines[:-1])  # the last one has the path of the store
    assert run("verify", tmp_path / "store").exit_code == 0


def test_a_dry_run_stores_nothing(old: Path, tmp_path: Path) -> None:
    shown = run("import", old, tmp_path / "store", "--dry-run")
    document = run_json("import", old, tmp_path / "store", "--dry-run", "--name", "a", "--without", "epoch")

    assert shown.exit_code == 0
    assert "nothing was written" in shown.stdout
    assert document["dry_run"] is True
    (checkpoint,) = document["checkpoints"]
    assert (checkpoint["format"], checkpoint["name"], checkpoint["step"]) == ("torch", "a", None)
    assert checkpoint["left_out"] == [{"source": "epoch", "why": "left out by --without"}]
    assert not (tmp_path / "store").exists()


def test_all_checkpoints_of_a_directory_are_imported_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (1000, 500):
        (tmp_path / f"out/checkpoint-{step}").mkdir(parents=True)
        save_file({"w": torch.full((2,), float(step))}, tmp_path / f"out/checkpoint-{step}/model.safetensors")
    (tmp_path / "out/checkpoint-700").mkdir()
    (tmp_path / "out/checkpoint-700/model.safetensors").write_bytes(b"damaged")

    several = run("import", tmp_path / "out", tmp_path / "store")
    result = run("import", tmp_path / "out", tmp_path / "store", "--prefix", "r", "--all")

    assert several.exit_code == 1
    assert "pass --all" in several.stderr
    assert result.exit_code == 1
    assert "checkpoint-700" in result.stderr
    assert result.stdout.splitlines()[-1] == "2 checkpoints imported, 1 failed"
    with Checkpointer(tmp_path / "store", prefix="r") as checkpointer:
        assert [each.name for each in checkpointer.checkpoints()] == ["r/step-00000500", "r/step-00001000"]
        assert checkpointer.load()["model"]["w"].tolist() == [1000, 1000]


def test_a_hostile_file_gets_a_sentence_and_exit_code_1_and_leaves_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    torch.save({"x": Executes(marker)}, tmp_path / "evil.pt")
    command = [*PROGRAM, "checkpoints", "import", str(tmp_path / "evil.pt"), str(tmp_path / "store")]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("chockstone: 'evil.pt' holds")
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["evil.pt"]


def test_names_in_a_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    torch.save({"\x1b[31mred": torch.ones(1), "step": 3}, tmp_path / "a.pt")

    result = run("import", tmp_path / "a.pt", tmp_path / "store")

    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
