from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from chockstone.backends.export import base_files
from chockstone.backends.export.encryption import parse_recipients
from chockstone.backends.export.merge import merge_archive
from chockstone.backends.training.base_model import load_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import DamagedArchive, ExportRefused
from support.backends.saving import (
    assert_same_logits,
    live_logits,
    logits_of,
    make_base,
    make_directory,
    make_mixture,
    make_run,
    open_desk,
)

KINDS = ["weights", "sampler_weights", "external_weights"]
FLAGS = [{}, {"train_unembed": False}, {"train_mlp": False}, {"train_attn": False, "train_mlp": False}]


def save(run: TrainedRun, store: Path, kind: str = "weights") -> Path:
    with open_desk(store) as desk:
        desk.save(run, "one", kind=kind)
    return store


def merge(store: Path, base: Path, directory: Path, **options: Any) -> Path:
    with open_desk(store) as desk, desk.open("one") as archive:
        merge_archive(archive, base, directory, **options)
    return directory


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_a_merged_adapter_computes_what_the_run_does(
    tmp_path: Path, architecture: str, tied: bool, flags: dict[str, bool]
) -> None:
    base = make_base(tmp_path / "base", architecture, tied=tied)
    run = make_run(base, **flags)
    expected = live_logits(run)

    merged = merge(save(run, tmp_path / "store"), base.directory, tmp_path / "merged")

    model, loaded = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"] and not loaded["mismatched_keys"]
    assert_same_logits(logits_of(model), expected)
    assert not torch.allclose(expected, logits_of(base.model), atol=1e-2)  # or there is nothing to see
    trains_head = flags.get("train_unembed", True)
    assert model.config.tie_word_embeddings == (tied and not trains_head)
    assert AutoTokenizer.from_pretrained(merged).decode([3, 4]) == "w3 w4"


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_archive_can_be_merged(tmp_path: Path, kind: str, tied: bool, rank: int) -> None:
    base = make_base(tmp_path / "base", tied=tied)
    run = make_run(base, rank=rank)

    merged = merge(save(run, tmp_path / "store", kind), base.directory, tmp_path / "merged")

    assert_same_logits(logits_of(AutoModelForCausalLM.from_pretrained(merged)), live_logits(run))
    assert (json.loads((merged / "config.json").read_text())["tie_word_embeddings"]) == (tied and rank == 0)


@pytest.mark.parametrize("rank", [4, 0])
def test_the_result_has_the_types_of_the_base(tmp_path: Path, rank: int) -> None:
    base = make_base(tmp_path / "base", dtype=torch.bfloat16)
    run = make_run(base, rank=rank)

    merged = merge(save(run, tmp_path / "store"), base.directory, tmp_path / "merged")

    model = AutoModelForCausalLM.from_pretrained(merged)
    tensors = load_file(merged / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16} and model.dtype == torch.bfloat16
    assert_same_logits(logits_of(model), live_logits(run), tolerance=6e-2)  # the sum is rounded where the run's is not
    weights = run.state()["weights"]
    expected = (
        weights["lm_head.weight"]
        if not rank
        else base.head.weight.float() + 32 / rank * (weights["lm_head.lora_B"] @ weights["lm_head.lora_A"])
    )
    assert torch.equal(tensors["lm_head.weight"], expected.to(torch.bfloat16))


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("tied", [False, True])
def test_large_models_are_read_and_written_in_pieces_and_shards(
    tmp_path: Path, tied: bool, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_base(tmp_path / "base", tied=tied)
    tiny = AutoModelForCausalLM.from_pretrained(base.directory)
    (base.directory / "model.safetensors").unlink()
    tiny.save_pretrained(base.directory, max_shard_size="20KB")
    monkeypatch.setattr(base_files, "PIECE_BYTES", 1000)
    run = make_run(base, rank=rank)
    written: list[int] = []

    store = save(run, tmp_path / "store")
    merged = merge(store, base.directory, tmp_path / "merged", shard_bytes=20_000, on_bytes=written.append)

    index = json.loads((merged / "model.safetensors.index.json").read_text())
    shards = sorted(merged.glob("model-*.safetensors"))
    assert len(shards) > 3 and {path.name for path in shards} == set(index["weight_map"].values())
    assert (
        sum(tensor.nbytes for path in shards for tensor in load_file(path).values())
        == (index["metadata"]["total_size"])
    )
    index_bytes = (merged / "model.safetensors.index.json").stat().st_size
    assert sum(written) == sum(path.stat().st_size for path in merged.iterdir()) - index_bytes
    if rank:
        assert max(written) <= 8192  # a header; or a piece
    assert_same_logits(logits_of(AutoModelForCausalLM.from_pretrained(merged)), live_logits(run))


def test_files_that_keep_a_tied_head_do_not_bring_the_old_one_back(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", tied=True)
    path = base.directory / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    path.unlink()
    save_file(tensors, path, metadata={"format": "pt"})
    run = make_run(base, rank=0)

    merged = merge(save(run, tmp_path / "store"), base.directory, tmp_path / "merged")

    with safe_open(merged / "model.safetensors", framework="pt") as file:
        assert "lm_head.weight" not in set(file.keys())
    assert_same_logits(logits_of(AutoModelForCausalLM.from_pretrained(merged)), live_logits(run))


@pytest.mark.parametrize("rank", [4, 0])
def test_a_mixture_of_experts_is_merged(tmp_path: Path, rank: int) -> None:
    base = load_base_model("tiny", make_mixture(tmp_path / "base"))
    run = make_run(base, rank=rank, **({"train_mlp": False} if rank else {}))

    merged = merge(save(run, tmp_path / "store"), base.directory, tmp_path / "merged")

    model, loaded = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not any(loaded[which] for which in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same_logits(logits_of(model), live_logits(run))


def test_damage_leaves_nothing_behind(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    store = save(make_run(base, rank=0), tmp_path / "store")
    content = bytearray((store / "one.tar").read_bytes())
    content[len(content) // 2] ^= 1
    (store / "one.tar").write_bytes(content)
    (tmp_path / "out").mkdir()

    with pytest.raises(DamagedArchive):
        merge(store, base.directory, tmp_path / "out" / "merged")

    assert os.listdir(tmp_path / "out") == []


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    store = save(make_run(base), tmp_path / "store")
    (tmp_path / "out").mkdir()

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(store, base.directory, tmp_path / "out" / "merged", on_bytes=interrupt)

    assert os.listdir(tmp_path / "out") == []


def test_a_directory_that_exists_is_left_alone(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    store = save(make_run(base), tmp_path / "store")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")

    with pytest.raises(ExportRefused, match="exists already"):
        merge(store, base.directory, tmp_path / "out")

    assert os.listdir(tmp_path / "out") == ["mine"]


@pytest.mark.parametrize("rank", [4, 0])
def test_another_base_model_is_refused(tmp_path: Path, rank: int) -> None:
    store = save(make_run(make_base(tmp_path / "base"), rank=rank), tmp_path / "store")
    other = make_directory(tmp_path / "other", "qwen3", tied=False)
    tensors = load_file(other / "model.safetensors")
    tensors["lm_head.weight"] = torch.zeros(90, 32)
    (other / "model.safetensors").unlink()
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ExportRefused, match=r"'lm_head.weight' has shape \[90, 32\] in the base model and \[97, 32\]"):
        merge(store, other, tmp_path / "merged")


def test_layers_that_the_base_does_not_have_are_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    store = save(make_run(base), tmp_path / "store")
    path = base.directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    path.unlink()
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(ExportRefused, match=r"trained 'model.layers.1.mlp.up_proj.weight', which the base"):
        merge(store, base.directory, tmp_path / "merged")


def test_a_quantised_base_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    store = save(make_run(base), tmp_path / "store")
    path = base.directory / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = torch.zeros(97, 32, dtype=torch.int8)
    path.unlink()
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(ExportRefused, match=r"'lm_head.weight' of the base model is quantised \(I8\)"):
        merge(store, base.directory, tmp_path / "merged")


def test_a_base_without_safetensors_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    store = save(make_run(base), tmp_path / "store")
    (base.directory / "model.safetensors").rename(base.directory / "pytorch_model.bin")

    with pytest.raises(ExportRefused, match="give a directory with safetensors"):
        merge(store, base.directory, tmp_path / "merged")
    with pytest.raises(ExportRefused, match="config.json' of the base model cannot be read"):
        merge(store, tmp_path / "nowhere", tmp_path / "merged")


def test_an_encrypted_export_is_refused(tmp_path: Path) -> None:
    import pyrage

    base = make_base(tmp_path / "base")
    recipients = parse_recipients([str(pyrage.x25519.Identity.generate().to_public())])
    with open_desk(tmp_path / "store") as desk:
        desk.save(make_run(base), "one", kind="external_weights", recipients=recipients)

    with pytest.raises(ExportRefused, match="encrypted"):
        merge(tmp_path / "store", base.directory, tmp_path / "merged")


def test_an_archive_that_is_no_run_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save({"model": {"w": torch.zeros(3)}}, name="one").result()

    with pytest.raises(ExportRefused, match="not a checkpoint of a run"):
        merge(tmp_path / "store", base.directory, tmp_path / "merged")
