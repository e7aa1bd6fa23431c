"""Trainings of several ranks, each in a process of its own. A job gets its rank first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as distributed

_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_FSDP = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}


@contextmanager
def rank_environment(rank: int) -> Iterator[None]:
    """What torchrun would set, and none of the state that accelerate keeps from an earlier job."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    if distributed.is_initialized():  # else it trains alone
        world_size = str(distributed.get_world_size())
        values = (str(rank), str(rank), world_size, world_size)
        os.environ.update({**dict(zip(_PLACE, values, strict=True)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    try:
        yield
    finally:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        for name in (*_PLACE, "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
            del os.environ[name]


def train_stop_and_resume(rank: int, place: Path, is_sharded: bool, damage: bool) -> dict[str, Any]:
    """Losses of a training left alone, and of one that stopped after step 4 and resumed; and the receipt."""
    from chockstone.integrations.hf_trainer import attach
    from support.integrations.hf_trainers import StopAfter, losses_of, tiny_llama, tiny_trainer
    from support.killed_training import flip_bit, newest_archive

    changes: dict[str, Any] = _FSDP if is_sharded else {}
    with rank_environment(rank):
        alone = tiny_trainer(place / "alone", save_strategy="no", **changes)
        alone.train()
        first = tiny_trainer(place / "output", callbacks=[StopAfter(4)], **changes)
        attach(first, place / "store")
        first.train()
        distributed.barrier()
        if damage and rank == 0:
            flip_bit(newest_archive(place / "store"))
        distributed.barrier()
        resumed = tiny_trainer(place / "output", model=tiny_llama(seed=1), **changes)
        checkpoints = attach(resumed, place / "store")
        resumed.train(resume_from_checkpoint="auto")
        assert checkpoints.receipt is not None
        return {
            "alone": losses_of(alone),
            "resumed": losses_of(resumed),
            "step": checkpoints.receipt.step,
            "skipped": len(checkpoints.receipt.skipped),
        }


def resume_alone(rank: int, place: Path) -> tuple[int | None, int]:
    """Resume in one process what others saved: the step that was restored, and the step that was reached."""
    from chockstone.integrations.hf_trainer import attach
    from support.integrations.hf_trainers import tiny_llama, tiny_trainer

    with rank_environment(rank):
        trainer = tiny_trainer(place / "output", model=tiny_llama(seed=2), max_steps=8)
        checkpoints = attach(trainer, place / "store")
        reached = trainer.train(resume_from_checkpoint="auto").global_step
        assert checkpoints.receipt is not None
        return checkpoints.receipt.step, reached
