"""Save jobs: the background half of a save, from a snapshot in memory to a committed archive.

A job may begin while the snapshot is still being copied.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chockstone.checkpoints.errors import (
    CheckpointExists,
    CheckpointMissing,
    SaveAbandoned,
    StoreError,
)
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.format.tree import STATE
from chockstone.checkpoints.reading.listing import RECOVERY, list_checkpoints
from chockstone.checkpoints.retention.enforcement import apply_retention
from chockstone.checkpoints.retention.policy import Removal, Retention
from chockstone.checkpoints.saving.clock import Clock
from chockstone.checkpoints.saving.handle import SavedCheckpoint, SaveHandle
from chockstone.checkpoints.saving.image import Image
from chockstone.checkpoints.saving.pace import Pace
from chockstone.checkpoints.saving.request import SaveRequest
from chockstone.checkpoints.saving.set_aside import set_aside
from chockstone.checkpoints.saving.snapshot import Snapshot, encode_state
from chockstone.checkpoints.saving.writer import Write
from chockstone.checkpoints.stores.store import Sink, Store

log = logging.getLogger(__name__)
_ORPHAN_SECONDS: Final = 3600.0  # locks tell orphans from writes, age does where locks do not reach


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Writes one snapshot. ``run`` returns when it is durable, or raises with nothing visible."""

    store: Store
    prefix: str
    request: SaveRequest
    snapshot: Snapshot
    clock: Clock
    retention: Retention | None
    handle: SaveHandle
    is_first: bool  # of its checkpointer: sweeps the store and lists its checkpoints
    was_skipped: bool = False  # a restore has skipped the archive of this name as damaged
    bytes_per_second: float = math.inf

    @property
    def plans_quickly(self) -> bool:
        """Whether the plan looks at one name of the store. Others list archives or read them."""
        return not (self.is_first or self.was_skipped or self.request.admission.quota_bytes is not None)

    def run(self, *, on_planned: Callable[[], None] = lambda: None) -> SavedCheckpoint:
        """``on_planned`` is called when nothing is left but to write."""
        files, manifest, layout = self.plan()
        image = Image(manifest, layout, files, self.snapshot)
        on_planned()
        sink = self.store.begin(self.request.name, layout.size)
        try:
            write = Write(
                image, sink, on_bytes=self.handle._advance, is_abandoned=self.handle.is_abandoned, pace=self.pace()
            )
            write.run()
            write.finish()
            self.commit(sink)
        except BaseException:
            sink.abort()
            raise
        return self.ended(manifest, layout, seal=image.seal)

    def plan(self) -> tuple[dict[str, bytes], Manifest, Layout]:
        """The small members, the manifest and the layout; raises if the save is bound to fail."""
        files = {STATE: encode_state(self.snapshot.skeleton), **self.request.files}
        if self.is_first:
            self._sweep()
            self._witness()
        manifest = self._manifest(files)
        manifest.check()
        layout = manifest.plan()
        self.handle._plan(layout.size)
        self._refuse_early(layout.size)
        return files, manifest, layout

    def commit(self, sink: Sink) -> None:
        self.snapshot.progress.wait_until_made()
        if self.handle.is_abandoned():
            raise SaveAbandoned(f"the save of {self.request.name!r} was abandoned; nothing of it is visible")
        sink.commit(overwrite=self.request.overwrite)

    def ended(self, manifest: Manifest, layout: Layout, *, seal: str) -> SavedCheckpoint:
        """After the commit: log it, apply retention, and return what was saved."""
        request = self.request
        seconds = time.perf_counter() - request.started
        level = logging.DEBUG if request.kind == RECOVERY else logging.INFO  # a server saves those all the time
        facts = (request.name, request.step, layout.size, seconds)
        log.log(level, "checkpoint saved name=%s step=%s bytes=%d seconds=%.3f", *facts)
        removed = self._retain(min(self.clock.now(), manifest.created_at))
        return self.saved(layout.size, seconds, removed, seal=seal)

    def saved(self, size: int, seconds: float, removed: tuple[Removal, ...] = (), *, seal: str) -> SavedCheckpoint:
        return SavedCheckpoint(
            self.request.name,
            self.store.url,
            self.request.step,
            size,
            self.snapshot.tensor_bytes,
            self.snapshot.progress.ended_at - self.request.started,
            seconds,
            removed,
            seal,
        )

    def pace(self) -> Pace:
        return Pace(self.bytes_per_second, self.handle._hurry)

    def _manifest(self, files: Mapping[str, bytes]) -> Manifest:
        request = self.request
        small = [(name, len(content)) for name, content in files.items()]
        large = [(section.name, len(section.header) + section.size) for section in self.snapshot.sections]
        return Manifest(
            kind=request.kind,
            step=request.step,
            created_at=self.clock.stamp(),
            members=(*small, *large),
            metrics=request.metrics,
            metadata=request.metadata,
            pinned=request.pinned,
            ttl_seconds=request.ttl_seconds,
        )

    def _refuse_early(self, size: int) -> None:
        """Refuse before the write what the commit would refuse after it."""
        is_taken = not self.request.overwrite and self._is_taken()
        if is_taken and self.was_skipped:
            set_aside(self.store, self.request.name)
            is_taken = self._is_taken()
        self.request.admission.check(self.store, prefix=self.prefix, name=self.request.name, size=size)
        if not is_taken:
            return
        raise CheckpointExists(
            f"checkpoint {self.request.name!r} exists already in {self.store.url}; choose another name, "
            "delete it first, or ask for overwrite"
        )

    def _is_taken(self) -> bool:
        try:
            self.store.stat(self.request.name)
        except CheckpointMissing:
            return False
        return True

    def _sweep(self) -> None:
        """Remove what killed processes left. A failure is logged and does not fail the save."""
        try:
            for partial in self.store.sweep(min_age_seconds=_ORPHAN_SECONDS):
                log.info("partial write swept place=%s bytes=%d", partial.place, partial.size)
        except StoreError as error:
            log.warning("sweep failed url=%s error=%s", self.store.url, error)

    def _witness(self) -> None:
        """Give this checkpoint a later timestamp than all that exist, also those whose clock ran ahead."""
        try:
            for checkpoint in list_checkpoints(self.store, self.prefix):
                if checkpoint.manifest is not None:
                    self.clock.observe(checkpoint.manifest.created_at)
        except StoreError as error:
            log.warning("checkpoint listing failed url=%s error=%s", self.store.url, error)

    def _retain(self, now: datetime) -> tuple[Removal, ...]:
        """Apply the policy. The archive is durable already, so a failure here is only logged."""
        if self.retention is None:
            return ()
        try:
            return apply_retention(self.store, self.prefix, self.retention, now=now).removed
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not look like a failed save
            log.warning("retention failed name=%s error=%r", self.request.name, error)
            return ()
