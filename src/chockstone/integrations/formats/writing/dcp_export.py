"""Exports as directories of ``torch.distributed.checkpoint``, which ``dcp.load`` reads on any number of ranks."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from chockstone.checkpoints.restoring.new_directory import new_directory
from chockstone.checkpoints.restoring.new_file import sync_file
from chockstone.checkpoints.stores.posix import fsync_directory
from chockstone.extras import require
from chockstone.integrations.formats.reading.type_notes import NOTES, encode_notes, make_plain


def write_dcp_directory(state: dict[str, Any], target: Path) -> Counter[str]:  # Any: a state
    """Write ``state`` to a new directory, from this process alone. Returns as ``write_torch_file`` does."""
    require("torch", "an export to DCP")
    from torch.distributed.checkpoint.state_dict_saver import save

    plain, counts = make_plain(state)
    with new_directory(target) as partial:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # DCP warns where there is one process
            save(plain, checkpoint_id=str(partial), no_dist=True)
        (partial / NOTES).write_bytes(encode_notes(state))
        for name in os.listdir(partial):
            sync_file(partial / name)
        fsync_directory(partial)
    return counts
