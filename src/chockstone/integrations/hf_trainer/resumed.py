"""A checkpoint that a training resumes from: the Trainer asks for its parts one after the other.

The Trainer restores the model before it has an optimizer, and the random generators last. For a model that every rank
has whole, the archive is read once, together with the model, and the other parts wait in memory for their turn. A
sharded model does not exist until the Trainer has read the trainer state. So rank 0 verifies the archive first, and
each rank reads its shards later.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from transformers.trainer import TRAINER_STATE_NAME

from chockstone.checkpoints import Checkpointer, RandomState, RestoreReceipt
from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.integrations.accelerate.rank_0 import choose_newest
from chockstone.integrations.hf_trainer.parts import (
    OPTIMIZER,
    RANDOM,
    SCALER,
    SCHEDULER,
    TRAINER_STATE,
    TRAINING,
    check_model_fits,
    load_adapters,
    model_targets,
)

log = logging.getLogger(__name__)
_VANISHED: Final = "all checkpoints were deleted while the training was about to resume from one"


class ResumedCheckpoint:
    """One checkpoint to resume from. ``directory`` stands for it where the Trainer wants a path.

    The directory holds ``trainer_state.json``, which the Trainer reads itself, and nothing else. All ranks call the
    same methods in the same order.
    """

    def __init__(
        self, checkpointer: Checkpointer, name: str | None, *, rewrite: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> None:
        """``name``: the full name; None: the newest good checkpoint. ``rewrite`` adapts the saved trainer state."""
        self._checkpointer = checkpointer
        self._name = name
        self._rewrite = rewrite
        self._parts: dict[str, Any] = {}
        self._is_sharded = False
        self._receipt: RestoreReceipt | None = None
        self.directory = Path(mkdtemp(prefix="chockstone-resume-"))

    @property
    def receipt(self) -> RestoreReceipt | None:
        """What was restored; None before the model is."""
        return self._receipt

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def prepare_sharded(self) -> None:
        """Choose the checkpoint and restore its small parts, before a sharded model exists."""
        self._is_sharded = True
        chosen = choose_newest(self._checkpointer, name=self._name)
        if chosen is None:
            raise CheckpointMissing(_VANISHED)
        self._name = chosen.name
        parts: dict[str, Any] = dict.fromkeys((SCHEDULER, SCALER, RANDOM, TRAINER_STATE))
        receipt = self._checkpointer.restore(parts, name=chosen.name, strict=False)
        self._accept(replace(receipt, skipped=chosen.skipped, steps_lost=chosen.steps_lost), parts)

    def restore_model(self, model: Any) -> None:
        """Restore the model; of a model that is not sharded, read all other parts as well."""
        if self._is_sharded:
            assert self._name is not None, "prepare_sharded comes first"
            assert self._receipt is not None
            receipt = self._checkpointer.restore(model_targets(model, in_place=True), name=self._name, strict=False)
            check_model_fits(model, receipt)
            self._receipt = replace(self._receipt, parts=(*receipt.parts, *self._receipt.parts))
            return
        parts = model_targets(model, in_place=False) | dict.fromkeys((*TRAINING, TRAINER_STATE))
        found = self._checkpointer.restore(parts, name=self._name, strict=False)
        if found is None:
            raise CheckpointMissing(_VANISHED)
        check_model_fits(model, found)
        load_adapters(model, parts)
        self._accept(found, parts)

    def load_optimizer_and_scheduler(self, optimizer: Any, scheduler: Any) -> None:
        if self._is_sharded:
            assert self._name is not None
            into = {OPTIMIZER: optimizer}
            is_saved = OPTIMIZER not in self._checkpointer.restore(into, name=self._name, strict=False).missing
        elif is_saved := (state := self._take(OPTIMIZER)) is not None:
            optimizer.load_state_dict(state)
        if not is_saved:
            log.warning("checkpoint has no optimizer, which starts anew name=%s", self._name)
            return
        scheduler.load_state_dict(self._take(SCHEDULER))

    def load_scaler(self, scaler: Any) -> None:
        if scaler is not None and (state := self._take(SCALER)) is not None:
            scaler.load_state_dict(state)

    def load_random(self) -> None:
        """Give each generator of this rank its state. The Trainer calls this when it has skipped the batches."""
        if (state := self._take(RANDOM)) is not None:
            random_state = RandomState(per_rank=True)
            random_state.load_state_dict(state)
            log.info("random generators restored %s name=%s", random_state.restored, self._name)

    def _accept(self, receipt: RestoreReceipt, parts: dict[str, Any]) -> None:
        self._name, self._receipt = receipt.name, receipt
        self._parts = {part: parts[part] for part in TRAINING if part in parts}
        state = self._rewrite(parts[TRAINER_STATE])
        (self.directory / TRAINER_STATE_NAME).write_text(json.dumps(state), encoding="utf-8")
        log.info("%s", receipt)

    def _take(self, part: str) -> Any:
        """A part, once. The Trainer asks again after it was out of memory; then it is read again."""
        if part not in self._parts:
            assert self._name is not None
            again: dict[str, Any] = {part: None}
            self._checkpointer.restore(again, name=self._name, strict=False)
            return again[part]
        return self._parts.pop(part)
