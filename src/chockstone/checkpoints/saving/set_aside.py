"""Set aside: a damaged archive gets another name, so that a save can take the name that it had.

A restore skips a damaged archive, and the training that continues from an older one comes to the same step again. The
damaged archive stays in the store as ``<name>.damaged-<number>``, for inspection.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import count

from chockstone.checkpoints.errors import CheckpointExists, CheckpointMissing, DamagedArchive, ForeignArchive
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.stores.store import Store

log = logging.getLogger(__name__)


def set_aside(store: Store, name: str) -> str | None:
    """Rename the archive of that name if it is damaged in two readings; its new name, or None if it stays.

    A process that dies between the copy and the deletion leaves the archive under both names.
    """
    try:
        damage = _find_damage(store, name) and _find_damage(store, name)
        if damage is None:
            return None
        aside = _copy_aside(store, name)
        store.delete(name)
    except CheckpointMissing:
        return None  # another process deleted it
    log.warning("damaged checkpoint set aside name=%s as=%s damage=%s", name, aside, damage)
    return aside


def _copy_aside(store: Store, name: str) -> str:
    for number in count(1):
        aside = f"{name}.damaged-{number}"
        with suppress(CheckpointExists):
            store.copy(name, aside)
            return aside
    raise AssertionError("there is always a further number")


def _find_damage(store: Store, name: str) -> str | None:
    try:
        with Archive(store.open(name)) as archive:
            verify_archive(archive)
    except (DamagedArchive, ForeignArchive) as error:
        return str(error)
    return None
