from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from chockstone.backends.quantisation import quantiser
from chockstone.backends.run_spec import BasePrecision
from chockstone.backends.training.base_model import BaseModel, load_base_model
from chockstone.sampling.quantised.linear import QuantisedLinear
from chockstone.sampling.quantised.weight import QuantisedPrecision, QuantisedWeight, quantise
from chockstone.wire.failures import ServerFailure
from support.backends.bitsandbytes_files import make_wide, quantise_files
from support.backends.saving import assert_same_logits, logits_of, make_directory, make_mixture

PRECISIONS: list[QuantisedPrecision] = ["8bit", "4bit"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wide(tmp_path_factory.mktemp("models") / "wide")


def load(directory: Path, precision: BasePrecision = "auto", *, dtype: str = "auto") -> BaseModel:
    return load_base_model("tiny", directory, dtype=dtype, base_precision=precision)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_are_quantised_as_they_are_read(
    tmp_path: Path, precision: QuantisedPrecision, architecture: str, tied: bool
) -> None:
    directory = make_directory(tmp_path / "base", architecture, tied=tied)
    plain = load(directory)

    base = load(directory, precision)

    assert (base.precision, plain.precision) == (precision, "full")
    assert base.weight_bytes < plain.weight_bytes
    assert not hasattr(base.model.config, "quantization_config")
    for name, layer in plain.layers.items():
        quantised = base.layers[name]
        if name == base.head_name:
            assert torch.equal(quantised.weight, layer.weight)
            continue
        assert isinstance(quantised, QuantisedLinear)
        expected = quantise(layer.weight, precision, dtype=torch.float32)
        assert torch.equal(quantised.codes, expected.codes) and torch.equal(quantised.scales, expected.scales)
        assert quantised.bias is None or torch.equal(quantised.bias, layer.bias)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_quantised_model_computes_what_its_dequantised_weights_do(wide: Path, precision: QuantisedPrecision) -> None:
    base, plain = load(wide, precision), load(wide)
    for name, layer in plain.layers.items():
        layer.weight.copy_(base.layers[name].weight)

    assert torch.equal(logits_of(base.model), logits_of(plain.model))


def test_one_weight_at_a_time_is_unquantised(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    before = {id(each) for each in gc.get_objects() if isinstance(each, torch.Tensor)}  # those of other tests

    def watched(weight: torch.Tensor, precision: QuantisedPrecision, *, dtype: torch.dtype) -> QuantisedWeight:
        new = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and id(each) not in before]
        full = {
            each.data_ptr()
            for each in new
            if each.shape == weight.shape and each.is_floating_point() and not each.is_meta
        }
        alive.append(len(full))
        return quantise(weight, precision, dtype=dtype)

    monkeypatch.setattr(quantiser, "quantise", watched)
    load(wide, "4bit")

    assert len(alive) == 14
    assert max(alive) == 1


def test_experts_are_not_quantised_and_the_rest_is(tmp_path: Path) -> None:
    base = load(make_mixture(tmp_path / "mixture"), "4bit")

    assert base.precision == "4bit"
    assert {parameter.dtype for name, parameter in base.model.named_parameters() if ".experts." in name} == {
        torch.float32
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_files_of_bitsandbytes_are_read_as_they_are(
    tmp_path: Path, wide: Path, precision: QuantisedPrecision, dtype: str
) -> None:
    directory = quantise_files(Path(shutil.copytree(wide, tmp_path / "stored")), precision)

    base, expected = load(directory, dtype=dtype), load(wide, precision, dtype=dtype)

    assert base.precision == precision and str(base.dtype) == f"torch.{dtype}"
    assert {parameter.dtype for name, parameter in base.model.named_parameters() if "norm" in name} == {base.dtype}
    assert_same_logits(logits_of(base.model), logits_of(expected.model), tolerance=1e-5 if dtype == "float32" else 3e-2)


def test_another_precision_than_that_of_the_files_is_refused(tmp_path: Path, wide: Path) -> None:
    directory = quantise_files(Path(shutil.copytree(wide, tmp_path / "stored")), "4bit")

    with pytest.raises(ServerFailure, match=r"quantised \(4bit\), and --base-precision is 8bit. Choose 4bit"):
        load(directory, "8bit")


def test_files_that_others_have_quantised_are_not_quantised_again(tmp_path: Path, wide: Path) -> None:
    directory = Path(shutil.copytree(wide, tmp_path / "stored"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))

    with pytest.raises(ServerFailure, match="not by bitsandbytes"):
        load(directory, "8bit")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weight.absmax", "its 'weight.absmax' is missing"),
        ("weight.quant_state.bitsandbytes__nf4", "has no 'weight.quant_state.bitsandbytes__nf4'"),
    ],
)
def test_files_without_a_part_of_a_weight_are_refused(tmp_path: Path, wide: Path, name: str, message: str) -> None:
    directory = quantise_files(Path(shutil.copytree(wide, tmp_path / "stored")), "4bit")
    tensors = load_file(directory / "model.safetensors")
    del tensors[f"model.layers.1.mlp.up_proj.{name}"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ServerFailure, match=f"weight 'model.layers.1.mlp.up_proj' cannot be read: .*{message}"):
        load(directory)


def test_codes_alone_are_refused(tmp_path: Path, wide: Path) -> None:
    directory = quantise_files(Path(shutil.copytree(wide, tmp_path / "stored")), "8bit")
    tensors = load_file(directory / "model.safetensors")
    for part in ("SCB", "weight_format"):
        del tensors[f"model.layers.0.self_attn.q_proj.{part}"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ServerFailure, match="the numbers beside its codes are missing"):
        load(directory)
