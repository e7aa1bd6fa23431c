from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families.tiny_model import write_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from chockstone.backends.export.base_files import BaseFiles
from chockstone.backends.export.weight_sources import find_sources, find_ties
from chockstone.backends.fsdp.weight_files import check_ties
from chockstone.wire.failures import ServerFailure


def make_empty(directory: Path) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))


def test_tied_weights_of_different_values_are_refused(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "gpt2")
    model = make_empty(directory)
    tensors = load_file(directory / "model.safetensors")
    embedding = next(name for name in tensors if name.endswith("wte.weight"))
    for change in (0.0, 1.0):
        save_file(tensors | {"lm_head.weight": tensors[embedding] + change}, directory / "model.safetensors")
        with BaseFiles(directory) as files:
            sources = find_sources(model, files.shapes)
            if not change:
                check_ties(sources, files, find_ties(model))
                continue
            with pytest.raises(ServerFailure, match='ties .* set "tie_word_embeddings": false'):
                check_ties(sources, files, find_ties(model))
