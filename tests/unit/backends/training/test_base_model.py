from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    PreTrainedModel,
)

from chockstone.backends.training.base_model import load_base_model, prepare_base_model
from chockstone.wire.failures import ServerFailure
from support.tiny_models import VOCABULARY, apply, datum, lora_run, tiny_model, tiny_tokenizer

SIZES = {
    "vocab_size": 97,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_a_directory_is_loaded_frozen_and_known(directory: Path, dtype: str) -> None:
    base = load_base_model("tiny", directory, device="cpu", dtype=dtype)

    assert (base.name, base.directory, base.architecture) == ("tiny", directory, "Qwen3ForCausalLM")
    assert (base.vocab_size, base.max_context, base.head_name) == (VOCABULARY, 64, "lm_head")
    assert base.dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    assert not base.model.training and not any(p.requires_grad for p in base.model.parameters())
    assert base.tokenizer.decode([3, 4]) == "w3 w4"


def test_a_directory_that_cannot_be_loaded_says_why(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ServerFailure, match="has no config.json"):
        load_base_model("gone", tmp_path / "gone")
    with pytest.raises(ServerFailure, match="dtype 'int4' is not one of auto, float32"):
        load_base_model("tiny", directory, dtype="int4")


@pytest.mark.parametrize("damage", ["truncated", "absent", "incomplete"])
def test_damaged_weight_files_are_refused(directory: Path, damage: str) -> None:
    weights = directory / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "absent":
        weights.unlink()
    else:
        tensors = load_file(weights)
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, weights, metadata={"format": "pt"})

    message = "'model.layers.1.mlp.up_proj.weight' is missing" if damage == "incomplete" else "cannot be loaded from"
    with pytest.raises(ServerFailure, match=f"model 'tiny'.*{message}"):
        load_base_model("tiny", directory)


def test_pickles_are_not_read(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(weights, directory / "pytorch_model.bin")

    with pytest.raises(ServerFailure, match=r"neither model.safetensors nor .* Pickle files .* `save_pretrained"):
        load_base_model("tiny", directory)


@pytest.mark.parametrize("outside", ["../outside.pt", "weights.txt", "../outside.safetensors"])
def test_files_that_an_index_names_outside_the_directory_are_not_read(directory: Path, outside: str) -> None:
    model = directory / "model"
    model.mkdir()
    for path in directory.glob("*.json"):
        path.rename(model / path.name)
    weights = load_file(directory / "model.safetensors")
    if outside.endswith(".safetensors"):
        (directory / "model.safetensors").rename(model / outside)
    else:
        torch.save(weights, model / outside)
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, outside)}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(
        ServerFailure, match=f"names '{outside}'; weights must be safetensors files in the same directory"
    ):
        load_base_model("tiny", model)


def test_shards_with_their_index_are_loaded(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    tiny_tokenizer().save_pretrained(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()

    assert load_base_model("tiny", tmp_path).vocab_size == VOCABULARY


def test_a_directory_with_an_adapter_is_refused(directory: Path) -> None:
    (directory / "adapter_config.json").write_text('{"base_model_name_or_path": "/somewhere/else"}')

    with pytest.raises(ServerFailure, match=r"model 'tiny': .* has an adapter_config.json.* Merge the adapter"):
        load_base_model("tiny", directory)


@pytest.mark.parametrize(
    "model",
    [
        Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, num_key_value_heads=1, final_logit_softcapping=2.0)),
        CohereForCausalLM(CohereConfig(**SIZES, num_key_value_heads=1, logit_scale=0.25)),
        GraniteForCausalLM(GraniteConfig(**SIZES, num_key_value_heads=1, logits_scaling=3.0)),
        GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_that_scale_or_cap_their_logits_train_on_what_they_really_compute(model: PreTrainedModel) -> None:
    model.eval()
    one = datum(9)
    tokens = torch.from_numpy(one.tokens).long()[None]
    logprobs = torch.log_softmax(model(tokens).logits[0].detach(), -1)
    expected = logprobs.gather(1, torch.from_numpy(one.inputs["target_tokens"])[:, None])[:, 0]
    run = lora_run(prepare_base_model("tiny", Path("tiny"), model, tiny_tokenizer()))
    run.load(run.state() | {"weights": {n: w * 0 for n, w in run.state()["weights"].items()}}, with_optimizer=False)

    result = apply(run, one)

    torch.testing.assert_close(torch.from_numpy(result.logprobs[0]), expected, rtol=1e-5, atol=1e-5)


def test_a_model_that_does_something_unknown_to_its_logits_is_refused() -> None:
    model = tiny_model()
    forward = model.forward

    def bent(*args: object, **kwargs: object) -> object:
        output = forward(*args, **kwargs)
        output.logits = output.logits * 1.01
        return output

    model.forward = bent

    with pytest.raises(ServerFailure, match="does more after its output layer than this server knows of"):
        prepare_base_model("bent", Path("bent"), model, tiny_tokenizer())


def test_a_model_that_looks_ahead_is_refused() -> None:
    model = BertLMHeadModel(BertConfig(**SIZES)).eval()

    with pytest.raises(ServerFailure, match="cannot be trained here"):
        prepare_base_model("bert", Path("bert"), model, tiny_tokenizer())


def test_a_model_with_damaged_weights_is_refused() -> None:
    model = tiny_model()
    model.lm_head.weight.data[3, 3] = float("nan")

    with pytest.raises(ServerFailure, match="not finite; its weights are damaged"):
        prepare_base_model("nan", Path("nan"), model, tiny_tokenizer())
