from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Trainer, TrainingArguments

from chockstone.checkpoints.errors import ImportRefused
from chockstone.checkpoints.restoring.random_state import states_of_ranks
from chockstone.integrations.formats.reading.hf_directory import read_hf
from chockstone.integrations.formats.reading.mapped_files import SourceDirectory
from chockstone.integrations.formats.reading.recognition import read_foreign
from support.integrations.foreign import same
from support.tiny_models import tiny_model


@pytest.fixture(scope="module")
def trainer_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that a real Trainer wrote."""
    output = tmp_path_factory.mktemp("trainer")
    tokens = torch.arange(16)
    data: Any = [{"input_ids": tokens + index, "labels": tokens + index} for index in range(8)]
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model=tiny_model(), args=arguments, train_dataset=data).train()
    return output


def test_a_checkpoint_of_the_trainer_is_taken_whole_but_for_its_pickle(trainer_output: Path) -> None:
    source = trainer_output / "checkpoint-4"

    found = read_foreign(source)

    assert (found.format, found.step) == ("hf", 4)
    assert list(found.state) == ["model", "optimizer", "scheduler", "random", "trainer_state"]
    saved = torch.load(source / "optimizer.pt", weights_only=True)
    assert same(found.state["optimizer"], saved)
    assert found.state["trainer_state"]["global_step"] == 4
    assert "config.json" in found.files
    assert [left.source for left in found.left_out] == ["training_args.bin"]


def test_the_generators_of_a_rank_are_those_of_the_trainer(trainer_output: Path) -> None:
    state = read_foreign(trainer_output / "checkpoint-4").state["random"]

    (generators,) = states_of_ranks(state)

    random.setstate(generators["python"])
    np.random.set_state(generators["numpy"])
    torch.set_rng_state(generators["torch"])
    drawn = (random.random(), np.random.rand(), torch.rand(1).item())
    with torch.serialization.safe_globals(
        [np._core.multiarray._reconstruct, np.ndarray, np.dtype, np.dtypes.UInt32DType]
    ):
        saved = torch.load(trainer_output / "checkpoint-4/rng_state.pth", weights_only=True)
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["cpu"])
    assert drawn == (random.random(), np.random.rand(), torch.rand(1).item())


def random_file(path: Path, seed: int) -> None:
    state = {"python": random.Random(seed).getstate(), "numpy": np.random.RandomState(seed).get_state()}
    torch.save({**state, "cpu": torch.Generator().manual_seed(seed).get_state()}, path)


def test_the_generators_of_several_ranks_are_kept_apart(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    for rank in range(3):
        random_file(tmp_path / f"rng_state_{rank}.pth", rank)

    ranks = states_of_ranks(read_hf(SourceDirectory(tmp_path)).state["random"])

    assert len(ranks) == 3
    for rank, generators in enumerate(ranks):
        assert same(tuple(generators["python"]), random.Random(rank).getstate())
        assert np.array_equal(generators["numpy"][1], np.random.RandomState(rank).get_state()[1])
        assert torch.equal(generators["torch"], torch.Generator().manual_seed(rank).get_state())
    (tmp_path / "rng_state_1.pth").unlink()
    with pytest.raises(ImportRefused, match="lacks the random state"):
        read_hf(SourceDirectory(tmp_path))


def test_adapters_and_pickled_weights_are_taken(tmp_path: Path) -> None:
    for name in ("adapter", "pickled", "sharded"):
        (tmp_path / name).mkdir()
    save_file({"w": torch.ones(1)}, tmp_path / "adapter/adapter_model.safetensors")
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    torch.save({"w": torch.ones(2)}, tmp_path / "pickled/pytorch_model.bin")
    torch.save({"w": torch.ones(3)}, tmp_path / "sharded/pytorch_model-00001-of-00001.bin")
    index = '{"weight_map": {"w": "pytorch_model-00001-of-00001.bin"}}'
    (tmp_path / "sharded/pytorch_model.bin.index.json").write_text(index)

    found = {name: read_foreign(tmp_path / name) for name in ("adapter", "pickled", "sharded")}

    assert same(found["adapter"].state, {"adapter_model": {"w": torch.ones(1)}})
    assert list(found["adapter"].files) == ["adapter_config.json"]
    assert same(found["pickled"].state, {"model": {"w": torch.ones(2)}})
    assert same(found["sharded"].state, {"model": {"w": torch.ones(3)}})


def test_a_broken_trainer_state_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "trainer_state.json").write_text("[]")

    with pytest.raises(ImportRefused, match="not a JSON object"):
        read_hf(SourceDirectory(tmp_path))
