"""Lightning: checkpoints of a Trainer as archives, saved in the background, verified when they are loaded.

    trainer = Trainer(plugins=[ArchiveCheckpointIO()], callbacks=[RandomStates(), ModelCheckpoint(save_last=True, …)])
    trainer.fit(model, ckpt_path="last")

Works with ``lightning`` and with ``pytorch_lightning``. Knows Lightning, torch and the checkpoint library. The names
below are imported on first use, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING

from chockstone.integrations.lightning.packages import require_lightning
from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.lightning.checkpoint_io import ArchiveCheckpointIO, newest_checkpoint, open_checkpoint
    from chockstone.integrations.lightning.random_states import RandomStates
    from chockstone.integrations.lightning.strategy import ArchiveModelParallelStrategy, ShardedArchives

__all__ = [
    "ArchiveCheckpointIO",
    "ArchiveModelParallelStrategy",
    "RandomStates",
    "ShardedArchives",
    "newest_checkpoint",
    "open_checkpoint",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ArchiveCheckpointIO": "checkpoint_io",
        "ArchiveModelParallelStrategy": "strategy",
        "RandomStates": "random_states",
        "ShardedArchives": "strategy",
        "newest_checkpoint": "checkpoint_io",
        "open_checkpoint": "checkpoint_io",
    },
    needs=require_lightning,
)
