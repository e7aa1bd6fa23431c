from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.checkpoints import Checkpointer
from chockstone.wire.failures import BadRequest
from support.backends.training import BATCH, bits, train
from support.tiny_models import (
    apply,
    lora_run,
    tiny_base,
)


@pytest.mark.parametrize(("rank", "optimizer"), [(4, "adamw"), (4, "sgd"), (0, "adamw")])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, rank: int, optimizer: str) -> None:
    spec = RunSpec(rank=rank, seed=3, optimizer=optimizer)
    step = OptimStep(family=optimizer, learning_rate=0.01, momentum=0.9)
    run = TrainedRun(tiny_base(), spec)
    apply(run, BATCH[0])
    run.optim_step(step)
    apply(run, BATCH[1])  # not yet applied
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(run.state(), step=run.steps).result()
        state = checkpointer.load()

    resumed = TrainedRun(tiny_base(), RunSpec(rank=rank, seed=99, optimizer=optimizer))
    resumed.load(state, with_optimizer=True)

    assert bits(resumed) == bits(run)
    for each in (run, resumed):
        apply(each, BATCH[2])
        each.optim_step(step)
    assert bits(resumed) == bits(run)


def test_loading_without_optimizer_starts_it_afresh() -> None:
    run, other = lora_run(tiny_base()), lora_run(tiny_base(), seed=8)
    train(run, steps=1)
    train(other, steps=2)
    apply(other, BATCH[0])

    other.load(run.state(), with_optimizer=False)

    assert other.steps == 0 and other.state()["gradient"] is None
    assert bits(other)[: len(run.state()["weights"])] == bits(run)[: len(run.state()["weights"])]


def _without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda base: lora_run(base, rank=8).state(), "has rank 8, the run 4"),
        (lambda base: lora_run(base, train_mlp=False).state(), "train different layers"),
        (
            lambda base: TrainedRun(base, RunSpec(rank=4, seed=0, optimizer="sgd")).state(),
            "optimizer is 'sgd', the run's 'adamw'",
        ),
        (lambda base: _without(lora_run(base).state(), "weights"), "no training state"),
        (lambda base: _without(lora_run(base).state(), "optimizer"), "no optimizer"),
        (lambda base: {"model": {}}, "not a run's training state"),
        (lambda base: lora_run(base).state() | {"gradient": torch.zeros(3)}, "load it without optimizer"),
        (lambda base: lora_run(base).state() | {"optimizer": {"steps": 1}}, "load it without optimizer"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_nothing_changed(change: Any, message: str) -> None:
    base: BaseModel = tiny_base()
    run = lora_run(base)
    train(run, steps=1)
    before = bits(run)

    with pytest.raises(BadRequest, match=message):
        run.load(change(base), with_optimizer=True)

    assert bits(run) == before
