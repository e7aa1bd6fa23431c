"""Archive files: background saves to the paths that Lightning chooses, and deletions that wait for them.

Lightning deletes an old checkpoint as soon as the call that saves the new one returns. Here the new one is durable only
later, so a deletion waits until the save before it has ended, and is dropped if that save failed.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from chockstone.checkpoints import Admission, Checkpointer, RestoreReceipt, SaveHandle
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, SaveAbandoned, SaveFailed
from chockstone.integrations.lightning.contents import describe, storable
from chockstone.integrations.lightning.folder import CheckpointFolder, name_of

log = logging.getLogger(__name__)
Ranks = Literal["auto", "off"]


class ArchiveFiles:
    """Saves, loads and deletes archives by path. Used from the thread that trains; writes in threads of its own."""

    def __init__(
        self,
        *,
        save_ranks: Ranks,
        load_ranks: Ranks = "auto",
        buffers: int,
        bytes_per_second: float | None,
        admission: Admission | None,
    ) -> None:
        """``save_ranks``: "auto" if all ranks call ``save`` together, "off" if one does; ``load_ranks``: for loads."""
        self._save_ranks: Ranks = save_ranks
        self._load_ranks: Ranks = load_ranks
        self._buffers = buffers
        self._bytes_per_second = bytes_per_second
        self._admission = admission
        self._folders: dict[Path, tuple[CheckpointFolder, Checkpointer]] = {}
        self._saves: list[tuple[SaveHandle, Path]] = []  # not settled yet
        self._last: SaveHandle | None = None
        self._deletions: list[tuple[SaveHandle | None, Path]] = []  # each with the save that it waits for
        self._failed: list[tuple[Path, BaseException]] = []
        self._lock = threading.Lock()

    def save(self, checkpoint: Mapping[str, Any], path: Path) -> SaveHandle:
        """Copy a checkpoint of Lightning and write it in the background.

        Raises SaveFailed for an earlier save that failed, and UnstorableValue, with the path of the value.
        """
        self._raise_failed()
        state, left_out = storable(checkpoint)
        facts = describe(checkpoint)
        handle = self._checkpointer(path).save(
            state,
            name=name_of(path.name),
            step=facts.step,
            kind=facts.kind,
            metrics=facts.metrics,
            metadata={"lightning": facts.version, "left_out": list(left_out)},
            overwrite=True,
        )
        with self._lock:
            self._saves.append((handle, path))
            self._last = handle
        handle.add_done_callback(lambda _: self._settle())
        return handle

    def delete(self, path: Path) -> None:
        """Delete a checkpoint when all saves so far have ended; keep it if the last of them failed."""
        with self._lock:
            self._deletions.append((self._last, path))
        self._settle()

    def restore(self, path: Path, make_target: Callable[[], dict[str, Any]], *, walk_back: bool) -> dict[str, Any]:
        """The state at a path, in what ``make_target`` returns. All ranks call it together, and get the same one.

        A directory stands for its newest good archive. ``walk_back``: if the file is missing or damaged, the newest
        good archive of its directory is restored instead.
        """
        self.wait()
        if path.is_dir():
            return self._restore_newest(path, make_target, suffix=".ckpt")
        store = CheckpointFolder(path.parent)
        try:
            with Checkpointer(store, ranks=self._load_ranks, scan_store=False) as checkpointer:
                target = make_target()
                _report(checkpointer.restore(target, name=name_of(path.name)))
                return target
        except CheckpointMissing:
            raise FileNotFoundError(f"checkpoint file {str(path)!r} does not exist") from None
        except DamagedArchive as error:
            if not walk_back:
                raise DamagedArchive(
                    f"checkpoint {str(path)!r} is damaged: {error}. To resume from the newest good checkpoint, give "
                    f"its directory {str(path.parent)!r} as ckpt_path"
                ) from error
            log.warning("checkpoint is damaged, trying older ones path=%s damage=%s", path, error)
        return self._restore_newest(path.parent, make_target, suffix=path.suffix)

    def wait(self) -> None:
        """Return when all saves so far are durable or have failed."""
        for _, checkpointer in self._folders.values():
            checkpointer.wait()
        self._settle()

    def close(self) -> None:
        """Wait for running saves. Raises SaveFailed if one failed, unless another error is on its way up already."""
        is_handling = sys.exc_info()[0] is not None
        folders, self._folders = self._folders, {}
        for store, checkpointer in folders.values():
            checkpointer.close()
            store.tidy()
        self._settle()
        self._last = None
        if not is_handling:
            self._raise_failed()

    def _restore_newest(
        self, directory: Path, make_target: Callable[[], dict[str, Any]], *, suffix: str
    ) -> dict[str, Any]:
        store = CheckpointFolder(directory, suffix=suffix)
        with Checkpointer(store, ranks=self._load_ranks, scan_store=False) as checkpointer:
            target = make_target()
            receipt = checkpointer.restore(target)
        if receipt is None:
            raise FileNotFoundError(f"directory {str(directory)!r} has no checkpoint file *{suffix}")
        _report(receipt)
        return target

    def _checkpointer(self, path: Path) -> Checkpointer:
        folder = path.parent.absolute()
        if folder not in self._folders:
            store = CheckpointFolder(folder, suffix=path.suffix)
            checkpointer = Checkpointer(
                store,
                ranks=self._save_ranks,
                buffers=self._buffers,
                bytes_per_second=self._bytes_per_second,
                admission=self._admission,
            )
            self._folders[folder] = store, checkpointer
        return self._folders[folder][1]

    def _settle(self) -> None:
        """Note the errors of saves that have ended, and delete what waited for them. Any thread calls it."""
        with self._lock:
            for save, path in [each for each in self._saves if each[0].done()]:
                self._saves.remove((save, path))
                error = save.exception()
                if error is not None and not isinstance(error, SaveAbandoned):
                    self._failed.append((path, error))
            for before, path in [each for each in self._deletions if each[0] is None or each[0].done()]:
                self._deletions.remove((before, path))
                if before is None or before.exception() is None:
                    _delete(path)
                else:
                    log.warning("checkpoint kept because the save after it failed path=%s", path)

    def _raise_failed(self) -> None:
        with self._lock:
            failed, self._failed = self._failed, []
        if failed:
            path, error = failed[0]
            raise SaveFailed(f"the save of checkpoint {str(path)!r} failed: {error}") from error


def _delete(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)  # a sharded checkpoint of Lightning's own
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("checkpoint not deleted path=%s error=%s", path, error)


def _report(receipt: RestoreReceipt) -> None:
    level = logging.WARNING if receipt.skipped else logging.INFO
    log.log(level, "%s", receipt)
