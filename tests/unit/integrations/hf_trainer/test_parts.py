"""Which parts the state of a Trainer has, and when a checkpoint does not fit a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.checkpoints import Checkpointer, RestoreReceipt
from chockstone.checkpoints.errors import RestoreMismatch
from chockstone.integrations.hf_trainer.parts import check_model_fits, model_parts, plain_model
from support.integrations.hf_trainers import tiny_llama, tiny_lora, tiny_trainer


def test_a_model_is_one_part_and_each_adapter_is_one(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = tiny_lora()
    model.add_adapter("other", peft.LoraConfig(r=2, task_type="CAUSAL_LM"))

    whole, adapters = tiny_trainer(tmp_path), tiny_trainer(tmp_path, model=model)

    assert list(model_parts(whole)) == ["model"]
    assert list(model_parts(adapters)) == ["adapter_model", "adapter_model.other"]
    assert plain_model(whole) is whole.model


def restore(place: Path, saved: dict[str, Any], model: torch.nn.Module) -> RestoreReceipt:
    with Checkpointer(place) as checkpointer:
        checkpointer.save(saved, step=1, overwrite=True).result()
        receipt = checkpointer.restore({"model": model, "scaler": None}, strict=False)
    assert receipt is not None
    return receipt


def test_tied_names_and_parts_that_a_save_may_leave_out_are_not_compared(tmp_path: Path) -> None:
    model = tiny_llama()
    whole = model.state_dict()
    without_tied = {name: value for name, value in whole.items() if name != "lm_head.weight"}
    without_norm = {name: value for name, value in whole.items() if name != "model.norm.weight"}

    check_model_fits(model, restore(tmp_path, {"model": without_tied, "random": 1}, model))

    with pytest.raises(RestoreMismatch, match=r"missing from the checkpoint: model\.model\.norm\.weight") as raised:
        check_model_fits(model, restore(tmp_path, {"model": without_norm, "adapter_model": {}}, model))
    assert raised.value.unexpected == ("adapter_model",)
