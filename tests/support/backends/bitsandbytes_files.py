"""Files of bitsandbytes: a tiny model as transformers would have saved it, quantised, without that library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from chockstone.sampling.quantised.weight import NF4, QuantisedPrecision, QuantisedWeight, quantise
from support.tiny_models import VOCABULARY, tiny_tokenizer

STATE = "weight.quant_state.bitsandbytes__nf4"


def make_wide(directory: Path, *, tied: bool = False) -> Path:
    """A tiny model whose widths are multiples of 64, as bitsandbytes needs them."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        Qwen3ForCausalLM(config).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def encode_json(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def stored_4bit(weight: QuantisedWeight, *, nested_blocksize: int | None = None) -> dict[str, torch.Tensor]:
    facts: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    tensors = {
        "weight": weight.codes.reshape(-1, 1).clone(),
        "weight.absmax": weight.scales.float().reshape(-1).clone(),
        "weight.quant_map": torch.tensor(NF4),
    }
    if nested_blocksize is not None:
        count = weight.scales.numel()
        facts |= {"nested_blocksize": nested_blocksize, "nested_dtype": "float32", "nested_offset": 0.5}
        tensors["weight.absmax"] = (torch.arange(count) * 37 % 256).to(torch.uint8)
        tensors["weight.nested_absmax"] = torch.linspace(0.1, 0.4, -(-count // nested_blocksize))
        tensors["weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
    return tensors | {STATE: encode_json(facts)}


def stored_8bit(weight: QuantisedWeight) -> dict[str, torch.Tensor]:
    return {
        "weight": weight.codes.clone(),
        "SCB": weight.scales * 127,
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }


def quantise_files(directory: Path, precision: QuantisedPrecision) -> Path:
    """Quantise the model in a directory, in the layout of bitsandbytes."""
    path = directory / "model.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(path).items():
        if "_proj" not in name or not name.endswith(".weight"):
            tensors[name] = tensor
            continue
        weight = quantise(tensor, precision, dtype=torch.float32)
        stored = stored_4bit(weight) if precision == "4bit" else stored_8bit(weight)
        tensors |= {name.removesuffix("weight") + key: value for key, value in stored.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": precision == "4bit",
        "load_in_8bit": precision == "8bit",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_use_double_quant": False,
        "llm_int8_skip_modules": None,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
