"""The shares that several ranks have of one archive, without processes and without a store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from chockstone.checkpoints.format.byte_runs import ByteRuns
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.ranks.buffer_pool import BufferPool
from chockstone.checkpoints.ranks.ownership import Chunk, Ownership, plan_ownership
from chockstone.checkpoints.ranks.share import RankShare, Received, file_runs
from chockstone.checkpoints.saving.image import Image
from chockstone.checkpoints.saving.snapshot import Snapshotter, encode_state


@dataclass(frozen=True, slots=True)
class Shares:
    layout: Layout
    ownership: Ownership
    runs: list[ByteRuns]
    ranks: list[RankShare]
    body: bytes  # as one process writes it

    def received(self, chunk: Chunk) -> list[Received]:
        """What the ranks that do not own a chunk send to the one that does."""
        found: list[Received] = []
        for rank, share in enumerate(self.ranks):
            parts = share.bytes_between(chunk.start, chunk.needed_to)
            if rank != chunk.owner and parts:
                position = int(self.runs[rank].before(np.array([chunk.start]))[0])
                found.append(Received(self.runs[rank], position, np.concatenate(parts)))
        return found


def make_shares(state: dict[str, Any], *, world_size: int) -> Shares:
    whole = Snapshotter().take(state)
    files = {"state.json": encode_state(whole.skeleton)}
    small = [(name, len(content)) for name, content in files.items()]
    large = [(section.name, len(section.header) + section.size) for section in whole.sections]
    manifest = Manifest("weights", 1, datetime(2030, 1, 1, tzinfo=UTC), members=(*small, *large))
    layout = manifest.plan()
    snapshots = [Snapshotter().take(state, rank=rank, world_size=world_size) for rank in range(world_size)]
    plans = [snapshot.copy_plan for snapshot in snapshots]
    runs = [file_runs(plan.runs, layout, whole.sections) for plan in plans if plan is not None]
    shared_from = layout.members[len(files)].header_offset
    ownership = plan_ownership(layout, runs, unit_bytes=1, shared_from=shared_from)
    buffers = BufferPool()
    ranks = [
        RankShare(layout, snapshot, runs[rank], buffers, mtime=manifest.mtime, files=None if rank else files)
        for rank, snapshot in enumerate(snapshots)
    ]
    pieces = Image(manifest, layout, files, whole).pieces(layout.body_offset, layout.body_end)
    return Shares(layout, ownership, runs, ranks, b"".join(piece for _, piece in pieces))
