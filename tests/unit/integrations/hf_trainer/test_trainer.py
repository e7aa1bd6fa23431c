"""A Trainer with archives: it saves, resumes, walks back and keeps the best, as its own arguments say."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from chockstone.checkpoints import Admission, Retention, list_checkpoints, open_store
from chockstone.checkpoints.errors import AdmissionRefused, RestoreMismatch
from chockstone.integrations.hf_trainer import ArchiveTrainer, TrainerUnsupported, attach
from support.integrations.hf_trainers import StopAfter, losses_of, tiny_llama, tiny_trainer
from support.killed_training import flip_bit, newest_archive


def steps_in(store: Path) -> list[int | None]:
    return [found.manifest.step for found in list_checkpoints(open_store(store)) if found.manifest]


def losses_alone(place: Path, **changes: Any) -> dict[int, float]:
    trainer = tiny_trainer(place, save_strategy="no", **changes)
    trainer.train()
    return losses_of(trainer)


def fresh_llama() -> Any:  # a Trainer accepts a function with no parameters or one
    return tiny_llama()


def train_until(step: int, place: Path, **changes: Any) -> Trainer:
    trainer = tiny_trainer(place / "output", callbacks=[StopAfter(step)], **changes)
    attach(trainer, place / "store")
    trainer.train()
    return trainer


def test_a_resumed_training_has_the_losses_of_one_left_alone(tmp_path: Path) -> None:
    alone = losses_alone(tmp_path / "alone")
    first = train_until(4, tmp_path)

    trainer = tiny_trainer(tmp_path / "output", model=tiny_llama(seed=1))
    checkpoints = attach(trainer, tmp_path / "store")
    output = trainer.train(resume_from_checkpoint="auto")

    assert losses_of(first) == {step: alone[step] for step in (1, 2, 3, 4)}
    assert losses_of(trainer) == alone
    assert output.global_step == 6
    assert checkpoints.receipt is not None
    assert checkpoints.receipt.step == 4
    assert {part.path for part in checkpoints.receipt.parts} == {
        "model",
        "optimizer",
        "scheduler",
        "random",
        "trainer_state",
    }
    assert steps_in(tmp_path / "store") == [2, 4, 6]
    assert not list((tmp_path / "output").glob("checkpoint-*"))
    assert type(trainer).__name__ == "Trainer"


def test_auto_starts_fresh_where_there_is_no_checkpoint_and_true_refuses(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "output", max_steps=1)
    checkpoints = attach(trainer, tmp_path / "store")

    with pytest.raises(ValueError, match="No valid checkpoint found"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.train(resume_from_checkpoint="auto").global_step == 1

    assert checkpoints.receipt is None


def test_a_flipped_bit_in_the_newest_checkpoint_costs_one_interval(tmp_path: Path) -> None:
    alone = losses_alone(tmp_path / "alone")
    train_until(4, tmp_path)
    flip_bit(newest_archive(tmp_path / "store"))

    trainer = tiny_trainer(tmp_path / "output")
    checkpoints = attach(trainer, tmp_path / "store")
    trainer.train(resume_from_checkpoint=True)

    assert checkpoints.receipt is not None
    assert checkpoints.receipt.step == 2
    assert [skipped.name for skipped in checkpoints.receipt.skipped] == ["step-00000004"]
    assert losses_of(trainer) == alone
    assert steps_in(tmp_path / "store") == [2, 4, 6]  # the damaged one was saved again


def test_the_argument_may_name_a_checkpoint_or_its_file(tmp_path: Path) -> None:
    train_until(4, tmp_path)

    for asked in ("step-00000002", str(tmp_path / "store" / "step-00000002.tar")):
        trainer = tiny_trainer(tmp_path / "output", max_steps=3, save_strategy="no")
        checkpoints = attach(trainer, tmp_path / "store")
        trainer.train(resume_from_checkpoint=asked)

        assert checkpoints.receipt is not None
        assert checkpoints.receipt.step == 2


def test_a_training_moves_over_from_ordinary_directories(tmp_path: Path) -> None:
    alone = losses_alone(tmp_path / "alone")
    tiny_trainer(tmp_path / "output", callbacks=[StopAfter(4)]).train()
    assert (tmp_path / "output" / "checkpoint-4").is_dir()

    trainer = tiny_trainer(tmp_path / "output")
    attach(trainer, tmp_path / "store")
    trainer.train(resume_from_checkpoint="auto")

    assert losses_of(trainer) == alone
    assert steps_in(tmp_path / "store") == [6]


def test_save_total_limit_and_the_best_model_join(tmp_path: Path) -> None:
    scores = {1: 0.5, 2: 0.1, 3: 0.4, 4: 0.3, 5: 0.2}

    def score(_: Any) -> dict[str, float]:
        return {"score": scores[trainer.state.global_step]}

    weights: dict[int, torch.Tensor] = {}

    class Keep(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            weights[state.global_step] = model.lm_head.weight.detach().clone()

    trainer = tiny_trainer(
        tmp_path / "output",
        max_steps=5,
        save_steps=1,
        eval_steps=1,
        eval_strategy="steps",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=False,
        compute_metrics=score,
        callbacks=[Keep()],
    )
    attach(trainer, tmp_path / "store")
    trainer.train()

    assert steps_in(tmp_path / "store") == [2, 5]
    assert trainer.state.best_model_checkpoint == str(tmp_path / "store" / "step-00000002.tar")
    assert torch.equal(trainer.model.lm_head.weight, weights[2])
    assert not torch.equal(weights[5], weights[2])
    resumed = tiny_trainer(tmp_path / "output", max_steps=6, save_strategy="no")
    attach(resumed, tmp_path / "store")
    resumed.train(resume_from_checkpoint="auto")
    assert resumed.state.best_model_checkpoint == trainer.state.best_model_checkpoint
    kept = list_checkpoints(open_store(tmp_path / "store"))[-1].manifest
    assert kept is not None
    assert kept.metrics["eval_score"] == 0.2


def test_the_last_checkpoint_may_be_the_best_one(tmp_path: Path) -> None:
    def score(_: Any) -> dict[str, float]:
        return {"score": float(trainer.state.global_step % 3)}

    trainer = tiny_trainer(
        tmp_path / "output",
        max_steps=3,
        save_strategy="best",
        eval_steps=1,
        eval_strategy="steps",
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        compute_metrics=score,
    )
    checkpoints = attach(trainer, tmp_path / "store", bytes_per_second=200_000)  # so that the last save takes a second
    trainer.train()

    assert steps_in(tmp_path / "store") == [1, 2]
    assert trainer.state.best_model_checkpoint == str(tmp_path / "store" / "step-00000002.tar")
    assert checkpoints.last_save is not None
    assert checkpoints.last_save.done()


def test_a_retention_policy_replaces_save_total_limit(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "output", save_steps=1, save_total_limit=1)
    attach(trainer, tmp_path / "store", retention=Retention(keep_last=1, keep_every=3))
    trainer.train()

    assert steps_in(tmp_path / "store") == [3, 6]


def test_save_only_model_leaves_the_optimizer_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train_until(4, tmp_path, save_only_model=True)

    trainer = tiny_trainer(tmp_path / "output")
    checkpoints = attach(trainer, tmp_path / "store")
    trainer.train(resume_from_checkpoint="auto")

    assert checkpoints.receipt is not None
    assert {part.path for part in checkpoints.receipt.parts} == {"model", "trainer_state"}
    assert "has no optimizer" in caplog.text


def test_the_error_of_a_background_save_ends_the_training(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "output", max_steps=2)
    attach(trainer, tmp_path / "store", admission=Admission(quota_bytes=10_000))

    with pytest.raises(AdmissionRefused):
        trainer.train()


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    train_until(2, tmp_path)
    other = torch.nn.Linear(2, 2)
    trainer = tiny_trainer(tmp_path / "output", model=other)
    attach(trainer, tmp_path / "store")

    with pytest.raises(RestoreMismatch, match="does not fit the model"):
        trainer.train(resume_from_checkpoint="auto")


def test_a_model_made_for_each_training_is_restored(tmp_path: Path) -> None:
    alone = losses_alone(tmp_path / "alone", model_init=fresh_llama)
    train_until(4, tmp_path, model_init=fresh_llama)

    trainer = tiny_trainer(tmp_path / "output", model_init=fresh_llama)
    attach(trainer, tmp_path / "store")
    trainer.train(resume_from_checkpoint="auto")

    assert losses_of(trainer) == alone


def test_sigterm_saves_and_the_save_is_durable_when_training_ends(tmp_path: Path) -> None:
    class Terminate(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    trainer = tiny_trainer(
        tmp_path / "output",
        max_steps=100_000,
        save_strategy="no",
        enable_jit_checkpoint=True,
        callbacks=[Terminate()],
        logging_steps=1000,
    )
    attach(trainer, tmp_path / "store")
    for callback in trainer.callback_handler.callbacks:
        if hasattr(callback, "jit_manager"):
            callback.jit_manager.kill_wait = 0  # else the Trainer waits three seconds
    trainer.train()

    ended = trainer.state.global_step
    assert ended < 100_000
    assert steps_in(tmp_path / "store") in ([ended], [ended - 1])  # the Trainer may save in the middle of a step
    assert not list((tmp_path / "output").glob("checkpoint-*"))


@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "all_checkpoints"])
def test_uploads_of_directories_are_refused(tmp_path: Path, strategy: str) -> None:
    trainer = tiny_trainer(tmp_path / "output", hub_strategy=strategy)
    trainer.args.push_to_hub = True  # after the Trainer was made: it would call the hub

    with pytest.raises(TrainerUnsupported, match="hub_strategy='end'"):
        attach(trainer, tmp_path / "store")


def test_a_trainer_that_inherits_is_as_its_base_until_checkpoints_are_attached(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "output", kind=ArchiveTrainer, max_steps=2)
    trainer.train()

    assert (tmp_path / "output" / "checkpoint-2" / "model.safetensors").is_file()
