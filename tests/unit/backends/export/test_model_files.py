from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chockstone.backends.export.model_files import (
    check_weights,
    read_companions,
    read_config,
    render_config,
    untied,
    with_dtype,
)
from chockstone.wire.failures import ServerFailure


def test_only_known_files_come_along_and_no_code(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "generation_config.json", "modeling_evil.py", "model.safetensors"):
        (tmp_path / name).write_text(name)

    assert read_companions(tmp_path) == {
        "generation_config.json": b"generation_config.json",
        "tokenizer.json": b"tokenizer.json",
    }


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()

    with pytest.raises(ServerFailure, match=r"tokenizer\.json' of the base model cannot be read"):
        read_companions(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), ("{", "not JSON of a model"), ("[]", "not a JSON object")]
)
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(ServerFailure, match=message):
        read_config(tmp_path)


def test_a_configuration_is_read_as_it_was_rendered(tmp_path: Path) -> None:
    config = {"model_type": "llama", "nested": {"a": [1]}}
    (tmp_path / "config.json").write_bytes(render_config(config))

    assert read_config(tmp_path) == config
    assert json.loads(render_config(config)) == config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"dtype": "float32"}),
        ({"torch_dtype": "bfloat16"}, {"torch_dtype": "float32"}),
        (
            {"dtype": "bfloat16", "text_config": {"torch_dtype": "bfloat16"}},
            {"dtype": "float32", "text_config": {"torch_dtype": "float32"}},
        ),
        ({"text_config": {"a": 1}}, {"dtype": "float32", "text_config": {"a": 1}}),
    ],
)
def test_another_type_replaces_the_keys_that_are_there(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert with_dtype(config, "float32") == expected


def test_an_untied_configuration_is_untied_everywhere() -> None:
    config = {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": True, "a": 1}}

    assert untied(config) == {
        "tie_word_embeddings": False,
        "text_config": {"tie_word_embeddings": False, "a": 1},
    }


@pytest.mark.parametrize("config", [{"transformers_weights": "a.bin"}, {"text_config": {"transformers_weights": "a"}}])
def test_a_configuration_that_names_its_weights_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    check_weights(tmp_path)

    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ServerFailure, match="config.json has an entry 'transformers_weights'"):
        check_weights(tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"weight_map": {}}'])
def test_an_index_must_name_weights(tmp_path: Path, index: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ServerFailure, match=r"model.safetensors.index.json (is not an index|names no file)"):
        check_weights(tmp_path)
