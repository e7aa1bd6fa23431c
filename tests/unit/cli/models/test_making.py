from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chockstone.cli.models.directory import count_parameters
from chockstone.cli.models.making import ModelNotMade, make_model
from chockstone.cli.models.shape import Architecture

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_transformers_loads_it_whole(made: tuple[Architecture, Path]) -> None:
    architecture, directory = made

    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)

    assert type(model).__name__ == {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[architecture]
    assert not any(report.values())
    assert model.dtype == torch.float32
    assert model.num_parameters() == pytest.approx(1_000_000, rel=0.1)
    assert model.num_parameters() == count_parameters(directory)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_seed_makes_the_same_bytes_and_another_seed_others(tmp_path: Path, architecture: Architecture) -> None:
    first, again, other = (
        contents(make_model(tmp_path / name, architecture=architecture, seed=seed).directory)
        for name, seed in (("first", 7), ("again", 7), ("other", 8))
    )

    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_a_vocabulary_can_be_as_large_as_real_ones(tmp_path: Path) -> None:
    made = make_model(tmp_path / "m", architecture="llama", parameters=10_000_000, vocab_size=20_000)

    tokenizer = AutoTokenizer.from_pretrained(made.directory)

    assert made.parameters == pytest.approx(10_000_000, rel=0.1)
    assert len(tokenizer) == 20_000
    assert len(set(tokenizer.get_vocab())) == 20_000


@pytest.mark.parametrize(
    ("vocab_size", "message"),
    [
        (200, "a vocabulary of 200 tokens cannot be made for qwen3: choose from 265"),
        (10**6, "to 262,144"),
        (50_000, "no qwen3 model has about 1,000,000 parameters and a vocabulary of 50,000"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path: Path, vocab_size: int, message: str) -> None:
    with pytest.raises(ModelNotMade, match=message):
        make_model(tmp_path / "m", vocab_size=vocab_size)

    assert not (tmp_path / "m").exists()
