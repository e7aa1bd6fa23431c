"""Random states: a callback that saves and restores the generators of every rank.

Lightning does not save them: after a resume, dropout and shuffling draw other numbers than in a run left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from chockstone.checkpoints import Pieces, RandomState
from chockstone.integrations.lightning.packages import take

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = take("Callback")

log = logging.getLogger(__name__)
KEY: Final = "random_states"  # in the checkpoint
_ROWS: Final = "rows"  # below it: per generator a tensor with one row of bytes per rank, as RandomState takes it


class RandomStates(Callback):
    """Saves the generators of Python, numpy, torch and CUDA of each rank, and restores them when ``fit`` resumes.

    Lightning makes iterators over the data before training starts, and each may draw a seed. So the generators are
    restored after that. A run that resumes at the end of an epoch then makes its iterator again, as a run left alone
    does at this point. A run that resumes inside an epoch had made its iterator before it was saved.
    """

    def __init__(self) -> None:
        self._saved: Mapping[str, Any] | None = None  # until training has started

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Gather the states of all ranks: in most strategies rank 0 saves alone."""
        own: dict[str, Pieces] = RandomState(per_rank=True).state_dict()[_ROWS]
        strategy, rows = trainer.strategy, {}
        for name, whole in own.items():
            ((_, row),) = whole.pieces
            rows[name] = strategy.all_gather(row.to(strategy.root_device)).reshape(whole.shape).cpu()
        checkpoint[KEY] = {_ROWS: rows}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            return
        self._saved = checkpoint.get(KEY)
        if self._saved is None:
            log.warning("random states are not in the checkpoint: add RandomStates() to the callbacks that save")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved is None:
            return
        random = RandomState(per_rank=True)
        random.load_state_dict(self._saved)
        log.info("random states restored: %s", random.restored)
        self._saved = None
        loop = trainer.fit_loop
        is_inside = loop.restarted_mid_epoch and not loop.epoch_loop.batch_progress.is_last_batch
        if not is_inside and loop._data_fetcher is not None:
            iter(loop._data_fetcher)
