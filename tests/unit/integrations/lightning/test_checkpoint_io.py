"""The plugin under real Trainers: what ModelCheckpoint, resuming and deleting do with archives."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning_pytorch
import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from chockstone.checkpoints import Admission, Archive, verify_archive
from chockstone.checkpoints.errors import DamagedArchive, SaveFailed
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.integrations.lightning import ArchiveCheckpointIO, RandomStates, newest_checkpoint, open_checkpoint
from support.integrations.lightning_runs import PositionedBatches, RecordingModule, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # what Lightning says about every resumed run


def fit(root: Path, checkpoint: ModelCheckpoint, *, ckpt_path: str | Path | None = None, **options: Any) -> Any:
    seed_everything(3, verbose=False)
    model, io = RecordingModule(), options.pop("io", None) or ArchiveCheckpointIO()
    callbacks = [RandomStates(), *options.pop("callbacks", ())]
    trainer = make_trainer(root, checkpoint=checkpoint, plugins=[io], callbacks=callbacks, **options)
    trainer.fit(model, PositionedBatches(), ckpt_path=ckpt_path)
    return model


def every(root: Path, steps: int, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(root, every_n_train_steps=steps, **{"save_top_k": -1, **options})


def files(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def verify(path: Path) -> Archive:
    with Archive(open_file(path), verify="full") as archive:
        verify_archive(archive)
        return archive


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_checkpoints_are_verified_archives_at_the_paths_of_lightning(tmp_path: Path) -> None:
    fit(tmp_path, every(tmp_path, 2, monitor="loss", save_last=True), max_steps=4)

    assert files(tmp_path) == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt", "last.ckpt"]
    manifest = verify(tmp_path / "epoch=0-step=4.ckpt").manifest
    assert manifest.step == 4
    assert set(manifest.metrics) == {"loss"}


@pytest.mark.parametrize("stop", [3, 6], ids=["inside an epoch", "after an epoch"])
def test_a_resumed_run_has_the_losses_of_one_left_alone(tmp_path: Path, stop: int) -> None:
    alone = fit(tmp_path / "alone", every(tmp_path / "alone", 3), max_steps=12)
    fit(tmp_path, every(tmp_path, 3), max_steps=stop)

    resumed = fit(tmp_path, every(tmp_path, 3), max_steps=12, ckpt_path=newest_checkpoint(tmp_path))

    assert resumed.losses == {step: loss for step, loss in alone.losses.items() if step > stop}
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), resumed.parameters(), strict=True))


def test_last_walks_back_past_damage_and_starts_anew_where_there_is_none(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no last checkpoint available"):
        fit(tmp_path, every(tmp_path, 3, save_last=True), max_steps=6, ckpt_path="last")
    flip_bit(tmp_path / "last.ckpt")
    flip_bit(tmp_path / "epoch=0-step=6.ckpt")

    resumed = fit(tmp_path, every(tmp_path, 3, save_last=True), max_steps=7, ckpt_path="last")

    assert min(resumed.losses) == 4


def test_a_certain_checkpoint_is_never_replaced_by_another(tmp_path: Path) -> None:
    fit(tmp_path, every(tmp_path, 3), max_steps=6)
    flip_bit(tmp_path / "epoch=0-step=6.ckpt")

    with pytest.raises(DamagedArchive, match="step=6"):
        fit(tmp_path, every(tmp_path, 3), max_steps=7, ckpt_path=tmp_path / "epoch=0-step=6.ckpt")


def test_save_top_k_keeps_the_best_and_best_loads_it(tmp_path: Path) -> None:
    checkpoint = every(tmp_path, 1, monitor="loss", save_top_k=2)
    model = fit(tmp_path, checkpoint, max_steps=6)

    best = sorted(model.losses, key=model.losses.__getitem__)[:2]
    assert files(tmp_path) == sorted(f"epoch=0-step={step}.ckpt" for step in best)
    assert Path(checkpoint.best_model_path).name == f"epoch=0-step={best[0]}.ckpt"
    fit(tmp_path, every(tmp_path, 3), max_steps=best[0] + 1, ckpt_path=checkpoint.best_model_path)


def test_a_link_to_the_last_checkpoint_leads_to_the_archive(tmp_path: Path) -> None:
    fit(tmp_path, every(tmp_path, 3, save_last="link"), max_steps=6)

    assert (tmp_path / "last.ckpt").is_symlink()
    resumed = fit(tmp_path, every(tmp_path, 3, save_last="link"), max_steps=7, ckpt_path="last")
    assert min(resumed.losses) == 7


def test_weights_alone_do_not_resume_a_run(tmp_path: Path) -> None:
    fit(tmp_path, every(tmp_path, 2, save_weights_only=True), max_steps=2)

    assert verify(tmp_path / "epoch=0-step=2.ckpt").manifest.kind == "model"
    model = RecordingModule.load_from_checkpoint(open_checkpoint(tmp_path / "epoch=0-step=2.ckpt"))
    assert model.hparams["hidden"] == 8


def test_an_exception_saves_and_the_end_waits_for_it(tmp_path: Path) -> None:
    class Stop(lightning_pytorch.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(tmp_path, every(tmp_path, 100), max_steps=6, callbacks=[OnExceptionCheckpoint(tmp_path), Stop()])

    assert verify(tmp_path / "on_exception.ckpt").manifest.step == 2


def test_a_failed_save_reaches_the_caller_of_fit(tmp_path: Path) -> None:
    with pytest.raises(SaveFailed, match="allowance"):
        fit(tmp_path, every(tmp_path, 6), max_steps=6, io=ArchiveCheckpointIO(admission=Admission(allowance_bytes=1)))


def test_load_from_checkpoint_takes_an_opened_archive(tmp_path: Path) -> None:
    trained = fit(tmp_path, every(tmp_path, 2), max_steps=2)

    loaded = RecordingModule.load_from_checkpoint(open_checkpoint(tmp_path / "epoch=0-step=2.ckpt"))

    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), loaded.parameters(), strict=True))


def test_a_file_of_torch_save_still_resumes(tmp_path: Path) -> None:
    seed_everything(3, verbose=False)
    trainer = make_trainer(tmp_path, checkpoint=every(tmp_path, 3), max_steps=3)
    trainer.fit(RecordingModule(), PositionedBatches())

    found = newest_checkpoint(tmp_path)
    resumed = fit(tmp_path, every(tmp_path, 4), max_steps=4, ckpt_path=found)

    assert found == str(tmp_path / "epoch=0-step=3.ckpt")
    assert list(resumed.losses) == [4]
    assert newest_checkpoint(tmp_path) == str(tmp_path)  # there is a newer archive now
    assert newest_checkpoint(tmp_path / "nowhere") is None


def test_the_plugin_survives_copies_and_more_than_one_fit(tmp_path: Path) -> None:
    io = copy.deepcopy(ArchiveCheckpointIO(background=False))

    fit(tmp_path, every(tmp_path, 2), max_steps=2, io=io)
    resumed = fit(tmp_path, every(tmp_path, 2), max_steps=4, io=io, ckpt_path=newest_checkpoint(tmp_path))

    assert list(resumed.losses) == [3, 4]


def test_paths_of_object_stores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="s3://bucket/a.ckpt"):
        ArchiveCheckpointIO().save_checkpoint({}, "s3://bucket/a.ckpt")
    with pytest.raises(TypeError, match="storage_options"):
        ArchiveCheckpointIO().save_checkpoint({}, tmp_path / "a.ckpt", storage_options={"a": 1})
