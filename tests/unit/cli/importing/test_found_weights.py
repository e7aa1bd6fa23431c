from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch.distributed import checkpoint as dcp

from chockstone.checkpoints.errors import ImportRefused
from chockstone.cli.importing.found_weights import FoundWeights, find_weights
from support.adapters import adapter_files, config, matrices


def write(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def find(directory: Path, **options: Any) -> FoundWeights:
    work = directory.parent / "work"
    work.mkdir(exist_ok=True)
    return find_weights(directory, work, **options)


def test_an_adapter_is_sent_as_it_is(tmp_path: Path) -> None:
    files = adapter_files()
    directory = write(tmp_path / "adapter", {**files, "README.md": b"# mine", "training_args.bin": b"\x80"})

    found = find(directory)

    assert (found.format, found.rank) == ("PEFT", 4)
    assert {name: file.content() for name, file in found.files.items()} == files
    assert found.trains == {"train_attn": True, "train_mlp": True, "train_unembed": False}
    assert [name for name, _ in found.left_out] == ["README.md", "training_args.bin"]


def test_the_layers_tell_what_a_run_trains(tmp_path: Path) -> None:
    tensors = matrices(layers=("lm_head", "model.layers.3.mlp.up_proj"))
    directory = write(tmp_path / "adapter", adapter_files(tensors=tensors))

    assert find(directory).trains == {"train_attn": False, "train_mlp": True, "train_unembed": True}


@pytest.mark.parametrize(
    ("place", "program"), [("adapter", "TuFT"), ("lora_adapter", "SkyRL"), ("policy/lora_adapter", "SkyRL")]
)
def test_an_adapter_inside_a_checkpoint_is_found(tmp_path: Path, place: str, program: str) -> None:
    write(tmp_path / "checkpoint" / place, adapter_files())
    (tmp_path / "checkpoint" / "metadata.json").write_bytes(b"{}")

    found = find(tmp_path / "checkpoint")

    assert found.format == program
    assert "metadata.json" in [name for name, _ in found.left_out]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_adapter_in_dcp_needs_its_alpha(tmp_path: Path) -> None:
    state = {key.replace(".weight", ".default.weight"): torch.from_numpy(value) for key, value in matrices().items()}
    base = {"base_model.model.model.embed_tokens.weight": torch.ones(2, 2)}
    dcp.save({"model": {**state, **base}, "step": 3}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)

    with pytest.raises(ImportRefused, match="--alpha"):
        find(tmp_path / "dcp")
    found = find(tmp_path / "dcp", alpha=16.0)

    assert (found.format, found.rank) == ("torch DCP", 4)
    written = load_file(found.files["adapter_model.safetensors"].path)
    assert written.keys() == matrices().keys()
    assert all(np.array_equal(written[key], value) for key, value in matrices().items())
    assert json.loads(found.files["adapter_config.json"].content())["lora_alpha"] == 16.0
    assert any("1 other tensors" in name for name, _ in found.left_out)


def test_a_model_is_joined_into_one_file(tmp_path: Path) -> None:
    tensors = {f"model.layers.{number}.mlp.up_proj.weight": np.ones((2, 3), np.float32) for number in range(2)}
    directory = write(tmp_path / "model", {"config.json": b"{}"})
    places = {}
    for number, (key, value) in enumerate(tensors.items(), start=1):
        places[key] = f"model-{number:05d}-of-00002.safetensors"
        save_file({key: value}, directory / places[key])
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    found = find(directory)

    assert (found.format, found.rank) == ("safetensors", 0)
    assert load_file(found.files["model.safetensors"].path).keys() == tensors.keys()


def test_what_holds_no_weights_is_refused_with_what_to_do(tmp_path: Path) -> None:
    files = adapter_files()
    pickled = write(tmp_path / "pickled", {"adapter_config.json": config(), "adapter_model.bin": b"\x80"})
    skyrl = write(tmp_path / "skyrl" / "policy", {"model_world_size_2_rank_0.pt": b"\x80"}).parent
    empty = write(tmp_path / "empty", {"notes.txt": b""})
    no_rank = write(tmp_path / "no-rank", {**files, "adapter_config.json": b"{}"})
    damaged = write(tmp_path / "damaged", {**files, "adapter_model.safetensors": b"\xff" * 64})
    link = write(tmp_path / "link", {"adapter_config.json": config()})
    (link / "adapter_model.safetensors").symlink_to(tmp_path / "damaged" / "adapter_model.safetensors")
    cases = {
        pickled: "safe_serialization=True",
        skyrl: "pickles",
        empty: "holds no weights",
        no_rank: "rank",
        damaged: "not a sound safetensors",
        link: "is a link",
        tmp_path / "absent": "there is no",
        damaged / "adapter_config.json": "is a file",
    }
    for path, words in cases.items():
        with pytest.raises(ImportRefused, match=words):
            find(path)
