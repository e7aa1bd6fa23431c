from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory, make_mixture


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "llama", "llama", tied=False))


def test_a_model_that_one_process_cannot_read_is_loaded_by_none(pair: Pool, directory: str) -> None:
    answers = pair.run("load_where_one_cannot", directory=directory)

    assert answers[0] == answers[1]
    assert answers[0].startswith("ServerFailure: model 'tiny'") and "config.json" in answers[0]


@pytest.mark.parametrize("lost", ["model.embed_tokens.weight", "model.layers.1.mlp.experts.3.up_proj.weight"])
def test_files_without_a_weight_are_refused(pair: Pool, tmp_path: Path, lost: str) -> None:
    directory = make_mixture(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    del tensors[lost]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    answers = pair.run("load", directory=str(directory))

    assert answers[0] == answers[1]
    assert "cannot be loaded from" in answers[0]


def test_a_quantised_model_is_refused_with_what_to_do(pair: Pool, directory: str, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))

    answers = pair.run("load", directory=str(tmp_path))

    assert answers[0] == answers[1]
    assert "Serve it with one worker" in answers[0]
