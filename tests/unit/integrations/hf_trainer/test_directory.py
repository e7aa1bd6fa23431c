"""A checkpoint of a Trainer as an ordinary directory, read by what reads ordinary directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chockstone.checkpoints import Archive, Checkpointer
from chockstone.checkpoints.errors import ExportRefused
from chockstone.integrations.hf_trainer import attach, export_hf_directory
from support.integrations.hf_trainers import StopAfter, losses_of, tiny_llama, tiny_lora, tiny_trainer


def train_four_steps(place: Path, model: Any) -> Any:
    trainer = tiny_trainer(place / "output", model=model, callbacks=[StopAfter(4)])
    checkpoints = attach(trainer, place / "store")
    trainer.train()
    checkpoints.export(place / "checkpoint-4")
    return trainer.model


def test_from_pretrained_and_an_ordinary_trainer_take_the_directory(tmp_path: Path) -> None:
    alone = tiny_trainer(tmp_path / "alone", save_strategy="no")
    alone.train()
    model = train_four_steps(tmp_path, tiny_llama())

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint-4")
    ordinary = tiny_trainer(tmp_path / "output", model=tiny_llama(seed=1), save_strategy="no")
    ordinary.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert {name: value.tolist() for name, value in loaded.state_dict().items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }
    assert tokenizer("w5 w6")["input_ids"] == [5, 6]
    assert losses_of(ordinary) == losses_of(alone)


def test_peft_and_an_ordinary_trainer_take_the_directory_of_an_adapter(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    alone = tiny_trainer(tmp_path / "alone", model=tiny_lora(), save_strategy="no")
    alone.train()
    model = train_four_steps(tmp_path, tiny_lora())

    loaded = peft.PeftModel.from_pretrained(tiny_llama(), tmp_path / "checkpoint-4")
    ordinary = tiny_trainer(tmp_path / "output", model=tiny_lora(), save_strategy="no")
    ordinary.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    trained = peft.get_peft_model_state_dict(model)
    assert all(torch.equal(value, trained[name]) for name, value in peft.get_peft_model_state_dict(loaded).items())
    assert losses_of(ordinary) == losses_of(alone)


def test_an_adapter_cannot_replace_a_file_beside_the_directory(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_text("mine")
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save({"adapter_model...": {"w": torch.ones(3)}, "trainer_state": {}}, step=1).result()

    with Archive(checkpointer.store.open("step-00000001")) as archive, pytest.raises(ExportRefused):
        export_hf_directory(archive, tmp_path / "out")

    assert (tmp_path / "adapter_model.safetensors").read_text() == "mine"
    assert not (tmp_path / "out").exists()


def test_an_archive_without_a_model_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save({"numbers": torch.ones(3)}, step=1).result()

    with (
        Archive(checkpointer.store.open("step-00000001")) as archive,
        pytest.raises(ExportRefused, match="no part 'model'"),
    ):
        export_hf_directory(archive, tmp_path / "out")

    assert not (tmp_path / "out").exists()
