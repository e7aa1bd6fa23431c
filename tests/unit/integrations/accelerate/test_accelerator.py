"""The accelerator: saves and loads of a real loop."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    RestoreMismatch,
    SaveFailed,
    UnstorableValue,
)
from chockstone.integrations.accelerate import ArchiveAccelerator


@pytest.fixture(autouse=True)
def _fresh_singletons() -> Iterator[None]:
    yield
    for each in (AcceleratorState, PartialState, GradientState):
        each._reset_state()


class Counter:
    def __init__(self, count: object = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, object]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.count = state["count"]


class Loop:
    """A small training with everything that an accelerator saves."""

    def __init__(
        self, root: Path, *, kind: type[Accelerator] = ArchiveAccelerator, seed: int = 3, **project: Any
    ) -> None:
        set_seed(seed)
        options = {"automatic_checkpoint_naming": True, **project}
        self.accelerator: Any = kind(cpu=True, project_config=ProjectConfiguration(str(root), **options))
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        loader = DataLoader(TensorDataset(torch.arange(96.0).reshape(24, 4).cos()), batch_size=4, shuffle=True)
        self.model, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            model, optimizer, scheduler, loader
        )
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)

    def epoch(self) -> list[float]:
        losses = []
        for (batch,) in self.loader:
            loss = self.model(batch).pow(2).mean() + random.random()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.counter.count += 1  # type: ignore[operator]  # a number here
            losses.append(loss.item())
        return losses


def archive(root: Path, number: int) -> Path:
    return root / "checkpoints" / f"checkpoint_{number}" / "state.tar"


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_resumed_loop_has_the_losses_of_one_left_alone(tmp_path: Path) -> None:
    alone = Loop(tmp_path)
    losses = [alone.epoch()]
    alone.accelerator.save_state()
    losses += [alone.epoch(), alone.epoch()]
    alone.accelerator.end_training()

    resumed = Loop(tmp_path, seed=4)
    receipt = resumed.accelerator.load_state()

    assert receipt.complete
    assert resumed.counter.count == 6
    assert [resumed.epoch(), resumed.epoch()] == losses[1:]
    assert resumed.scheduler.state_dict() == alone.scheduler.state_dict()


def test_the_newest_good_checkpoint_is_loaded_and_numbering_continues(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    assert loop.accelerator.load_state() is None
    for _ in range(3):
        loop.epoch()
        loop.accelerator.save_state()
    loop.accelerator.end_training()
    flip_bit(archive(tmp_path, 2))

    resumed = Loop(tmp_path)
    receipt = resumed.accelerator.load_state()

    assert receipt.name == "checkpoint_1/state"
    assert [skipped.name for skipped in receipt.skipped] == ["checkpoint_2/state"]
    assert resumed.counter.count == 12
    assert resumed.accelerator.save_state().endswith("checkpoint_3")
    with pytest.raises(DamagedArchive):
        resumed.accelerator.load_state(archive(tmp_path, 2).parent)
    assert resumed.accelerator.load_state(tmp_path / "checkpoints").name == "checkpoint_3/state"


def test_total_limit_deletes_the_oldest_when_the_new_one_is_durable(tmp_path: Path) -> None:
    loop = Loop(tmp_path, total_limit=2)
    for _ in range(4):
        loop.accelerator.save_state()
    loop.accelerator.end_training()

    assert sorted(name for name in os.listdir(tmp_path / "checkpoints") if not name.startswith(".")) == [
        "checkpoint_2",
        "checkpoint_3",
    ]


def test_a_checkpoint_of_a_name_is_replaced_and_loaded_by_its_path(tmp_path: Path) -> None:
    loop = Loop(tmp_path, automatic_checkpoint_naming=False)
    for count in (1, 2):
        loop.counter.count = count
        assert loop.accelerator.save_state(tmp_path / "mine") == str(tmp_path / "mine")
    loop.counter.count = 3

    loop.accelerator.load_state(tmp_path / "mine")

    assert loop.counter.count == 2
    with pytest.raises(ValueError, match="needs output_dir"):
        loop.accelerator.save_state()
    with pytest.raises(CheckpointMissing, match="neither a checkpoint nor a folder"):
        loop.accelerator.load_state(tmp_path / "other")


def test_a_directory_of_accelerate_still_loads(tmp_path: Path) -> None:
    old = Loop(tmp_path, kind=Accelerator)
    expected = [old.epoch()]
    old.accelerator.save_state()
    expected.append(old.epoch())

    loop = Loop(tmp_path, seed=4)

    assert loop.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0") is None
    assert loop.counter.count == 6


def test_a_run_that_began_with_accelerate_continues_from_its_newest_directory(tmp_path: Path) -> None:
    old = Loop(tmp_path, kind=Accelerator)
    for _ in range(2):
        old.epoch()
        old.accelerator.save_state()

    loop = Loop(tmp_path, seed=4)

    assert loop.accelerator.load_state() is None
    assert loop.counter.count == 12
    assert loop.accelerator.save_state().endswith("checkpoint_2")


def test_an_archive_beside_old_files_of_accelerate_is_what_is_loaded(tmp_path: Path) -> None:
    loop = Loop(tmp_path, automatic_checkpoint_naming=False)
    loop.counter.count = 5
    loop.accelerator.save_state(tmp_path / "mine")
    loop.accelerator.wait_for_saves()
    (tmp_path / "mine" / "random_states_0.pkl").touch()
    loop.counter.count = 6

    assert loop.accelerator.load_state(tmp_path / "mine") is not None
    assert loop.counter.count == 5


@pytest.mark.parametrize("good", [1, 0])
def test_a_hook_does_not_hide_damage(tmp_path: Path, good: int) -> None:
    loop = Loop(tmp_path)
    directories: list[str] = []
    loop.accelerator.register_load_state_pre_hook(lambda models, directory: directories.append(directory))
    for _ in range(good + 1):
        loop.accelerator.save_state()
    loop.accelerator.wait_for_saves()
    newest = archive(tmp_path, good)
    os.truncate(newest, newest.stat().st_size - 1)

    if good:
        receipt = loop.accelerator.load_state()

        assert [skip.name for skip in receipt.skipped] == ["checkpoint_1/state"]
        assert directories == [str(tmp_path / "checkpoints" / "checkpoint_0")]
    else:
        with pytest.raises(DamagedArchive, match="checkpoint_0/state"):
            loop.accelerator.load_state()


def test_a_failed_save_is_raised_by_the_next_by_a_wait_and_by_the_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    loop.accelerator.save_state()
    with pytest.raises(SaveFailed, match="checkpoint_0"):
        loop.accelerator.wait_for_saves()
    loop.accelerator.save_state()
    loop.accelerator._saves.wait()

    with pytest.raises(SaveFailed, match="checkpoint_1"):
        loop.accelerator.save_state()
    loop.accelerator.save_state()
    with pytest.raises(SaveFailed):
        loop.accelerator.end_training()


def test_hooks_get_the_directory_and_may_save_models_themselves(tmp_path: Path) -> None:
    loop = Loop(tmp_path)

    def save(models: list[Any], weights: list[Any], directory: str) -> None:
        torch.save(weights.pop(), os.path.join(directory, "mine.pt"))

    def load(models: list[Any], directory: str) -> None:
        models.pop().load_state_dict(torch.load(os.path.join(directory, "mine.pt"), weights_only=True))

    loop.accelerator.register_save_state_pre_hook(save)
    loop.accelerator.register_load_state_pre_hook(load)
    saved = {name: value.clone() for name, value in loop.model.state_dict().items()}
    loop.accelerator.save_state()
    loop.epoch()

    receipt = loop.accelerator.load_state()

    assert all(torch.equal(saved[name], value) for name, value in loop.model.state_dict().items())
    assert "models" not in {part.path for part in receipt.parts if part.tensors}


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.accelerator.save_state()
    loop.accelerator.register_for_checkpointing(Counter())

    with pytest.raises(RestoreMismatch, match="custom"):
        loop.accelerator.load_state()
    loop.counter.count = object()
    with pytest.raises(UnstorableValue, match=r"custom\[0\]\.count"):
        loop.accelerator.save_state()


def test_what_cannot_be_saved_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(tmp_path)
    with pytest.raises(TypeError, match="'exclude_frozen_parameters'"):
        loop.accelerator.save_state(exclude_frozen_parameters=True)
    with pytest.raises(TypeError, match="Unsupported optimizer map location"):
        loop.accelerator.load_state(map_location="elsewhere")
    monkeypatch.setattr(type(loop.accelerator), "distributed_type", DistributedType.DEEPSPEED)
    with pytest.raises(CheckpointError, match="DEEPSPEED"):
        loop.accelerator.save_state()
