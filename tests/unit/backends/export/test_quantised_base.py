from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from chockstone.backends.export.merge import merge_archive
from chockstone.backends.run_spec import BasePrecision
from chockstone.backends.training.base_model import BaseModel, load_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.checkpoints.errors import ExportRefused
from support.backends.bitsandbytes_files import make_wide, quantise_files
from support.backends.saving import assert_same_logits, live_logits, logits_of, open_desk
from support.tiny_models import lora_run

PRECISIONS: list[BasePrecision] = ["8bit", "4bit"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wide(tmp_path_factory.mktemp("models") / "wide", tied=True)


def load(directory: Path, precision: BasePrecision = "auto") -> BaseModel:
    return load_base_model("tiny", directory, base_precision=precision)


def merge(run: TrainedRun, base: Path, home: Path, *, kind: str) -> Path:
    with open_desk(home / "store") as desk:
        desk.save(run, "one", kind=kind)
        with desk.open("one") as archive:
            merge_archive(archive, base, home / "merged")
    return home / "merged"


@pytest.mark.parametrize("kind", ["weights", "sampler_weights"])
@pytest.mark.parametrize("flags", [{}, {"train_mlp": False}], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_merged_model_is_the_dequantised_base_with_the_adapter(
    tmp_path: Path, directory: Path, precision: BasePrecision, flags: dict[str, bool], kind: str
) -> None:
    run = lora_run(load(directory, precision), **flags)

    merged = merge(run, directory, tmp_path, kind=kind)

    model = AutoModelForCausalLM.from_pretrained(merged)
    assert_same_logits(logits_of(model), live_logits(run))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_merged_model_from_files_of_bitsandbytes_is_not_quantised(tmp_path: Path, precision: BasePrecision) -> None:
    assert precision != "auto"
    stored = quantise_files(make_wide(tmp_path / "stored"), precision)
    run = lora_run(load(stored))

    merged = merge(run, stored, tmp_path, kind="weights")

    model, loaded = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    assert not hasattr(model.config, "quantization_config")
    assert_same_logits(logits_of(model), live_logits(run))


def test_a_run_is_not_merged_into_files_of_another_precision(tmp_path: Path, directory: Path) -> None:
    run = lora_run(load(directory, "8bit"))
    stored = quantise_files(make_wide(tmp_path / "stored"), "4bit")

    with pytest.raises(ExportRefused, match="precision '8bit', and the files of this one are quantised to 4bit"):
        merge(run, stored, tmp_path, kind="weights")
