"""A test adapter of the output layer alone, to find out whether a vLLM server applies such adapters.

vLLM can be configured to adapt some layers only, and silently ignores an adapter's other matrices. A server that
adapts the output layer cannot score prompts: with any adapter or none, it gives wrong numbers or crashes.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save

from chockstone.sampling.vllm.adapters import AdapterFiles
from chockstone.sampling.vllm.model_facts import ModelFacts

_ALPHA: Final = 64


@contextmanager
def head_probe(directory: Path, facts: ModelFacts) -> Iterator[AdapterFiles]:
    """Its files are below ``directory`` until the block ends. Raises OSError."""
    place = directory / f"chockstone-probe-{secrets.token_hex(8)}"
    random = np.random.default_rng(0)
    down_RI = random.normal(0, facts.hidden_size**-0.5, (1, facts.hidden_size)).astype(np.float32)
    up_OR = random.normal(0, 1, (facts.vocabulary, 1)).astype(np.float32)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 1,
        "lora_alpha": _ALPHA,
        "bias": "none",
        "target_modules": ["lm_head"],
    }
    tensors = {"base_model.model.lm_head.lora_A.weight": down_RI, "base_model.model.lm_head.lora_B.weight": up_OR}
    place.mkdir()
    try:
        (place / "adapter_config.json").write_text(json.dumps(config))
        (place / "adapter_model.safetensors").write_bytes(save(tensors))  # errors of the disk are OSErrors then
        yield AdapterFiles(place.name, str(place), has_head=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
