"""The small files beside the weights are those that the Trainer itself writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chockstone.integrations.hf_trainer.model_files import model_files
from support.integrations.hf_trainers import tiny_lora, tiny_trainer


def test_the_files_are_those_of_save_model(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "output")
    trainer.save_model(str(tmp_path / "saved"))

    files = model_files(trainer)

    written = {path.name for path in (tmp_path / "saved").iterdir()}
    assert set(files) == written - {"model.safetensors", "training_args.bin"}
    assert json.loads(files["config.json"]) == json.loads((tmp_path / "saved" / "config.json").read_text())


def test_the_files_of_an_adapter_have_its_configuration(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    trainer = tiny_trainer(tmp_path / "output", model=tiny_lora())
    trainer.save_model(str(tmp_path / "saved"))

    files = model_files(trainer)

    assert json.loads(files["adapter_config.json"]) == json.loads(
        (tmp_path / "saved" / "adapter_config.json").read_text()
    )
    assert "config.json" not in files
