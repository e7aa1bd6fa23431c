from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from chockstone.sampling.vllm.model_facts import ModelFacts, read_facts


def write(directory: Path, **files: Any) -> Path:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_ends_of_sequence_are_found_wherever_they_are_named(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0, "<end>": 7}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    write(
        tmp_path,
        config={"vocab_size": 9, "hidden_size": 4, "eos_token_id": 5, "max_position_embeddings": 64},
        generation_config={"eos_token_id": [5, 6]},
        tokenizer_config={"eos_token": {"content": "<end>"}},
    )

    assert read_facts("tiny", tmp_path) == ModelFacts("tiny", 9, 4, 64, frozenset({5, 6, 7}))


def test_a_model_with_a_part_for_text_is_described_by_that(tmp_path: Path) -> None:
    text = {"vocab_size": 9, "hidden_size": 4, "eos_token_id": None}
    write(tmp_path, config={"text_config": text, "max_position_embeddings": 32})

    assert read_facts("tiny", tmp_path) == ModelFacts("tiny", 9, 4, 32, frozenset())


def test_a_directory_that_says_too_little_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no vocab_size"):
        read_facts("tiny", write(tmp_path, config={}))
