"""Archive files: background saves to the paths that Lightning chooses, and deletions that wait for them."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Unpack

from chockstone.checkpoints import Checkpointer, RestoreReceipt, SaveHandle
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive
from chockstone.integrations.background_saves import BackgroundSaves
from chockstone.integrations.checkpointer_options import RANK_TIMEOUT_SECONDS, CheckpointerOptions
from chockstone.integrations.lightning.contents import describe, storable
from chockstone.integrations.lightning.folder import CheckpointFolder, name_of

log = logging.getLogger(__name__)
Ranks = Literal["auto", "off"]


class ArchiveFiles:
    """Saves, loads and deletes archives by path. Used from the thread that trains; writes in threads of its own."""

    def __init__(
        self, *, save_ranks: Ranks, load_ranks: Ranks = "auto", **options: Unpack[CheckpointerOptions]
    ) -> None:
        """``save_ranks``: "auto" if all ranks call ``save`` together, "off" if one does; ``load_ranks``: for loads."""
        self._save_ranks: Ranks = save_ranks
        self._load_ranks: Ranks = load_ranks
        self._options = options
        self._folders: dict[Path, tuple[CheckpointFolder, Checkpointer]] = {}
        self._saves = BackgroundSaves()
        self._handled: BaseException | None = None  # the error that the caller was handling when training began

    def save(self, checkpoint: Mapping[str, Any], path: Path) -> SaveHandle:
        """Copy a checkpoint of Lightning and write it in the background.

        Raises SaveFailed for an earlier save that failed, and UnstorableValue, with the path of the value.
        """
        self._saves.raise_failed()
        if not self._folders:  # the first save of a training
            self._handled = sys.exception()
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
        self._saves.add(handle, str(path))
        return handle

    def delete(self, path: Path) -> None:
        """Delete a checkpoint when all saves so far have ended; keep it if the last of them failed."""
        self._saves.after_last(lambda: _delete(path))

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
            with self._reader(store) as checkpointer:
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
        """Return when all saves so far are durable or have failed, and what waited for them is deleted."""
        self._saves.wait()

    def raise_failed(self) -> None:
        """Raise SaveFailed if a save has failed since the last call."""
        self._saves.raise_failed()

    def close(self) -> None:
        """Wait for running saves. Raises SaveFailed if one failed; logs it if an error of the training is on its way.

        Lightning calls this while it handles such an error. A training may itself be started by code that handles
        another error: that one does not count.
        """
        is_failing = sys.exception() not in (None, self._handled)
        folders, self._folders = self._folders, {}
        for store, checkpointer in folders.values():
            checkpointer.close()
            store.tidy()
        self._saves.wait()
        self._saves.forget_last()
        self._handled = None
        if is_failing:
            self._saves.log_failed()
        else:
            self._saves.raise_failed()

    def _restore_newest(
        self, directory: Path, make_target: Callable[[], dict[str, Any]], *, suffix: str
    ) -> dict[str, Any]:
        store = CheckpointFolder(directory, suffix=suffix)
        with self._reader(store) as checkpointer:
            target = make_target()
            receipt = checkpointer.restore(target)
        if receipt is None:
            raise FileNotFoundError(f"directory {str(directory)!r} has no checkpoint file *{suffix}")
        _report(receipt)
        return target

    def _reader(self, store: CheckpointFolder) -> Checkpointer:
        timeout = self._options.get("rank_timeout_seconds", RANK_TIMEOUT_SECONDS)
        return Checkpointer(store, ranks=self._load_ranks, scan_store=False, rank_timeout_seconds=timeout)

    def _checkpointer(self, path: Path) -> Checkpointer:
        folder = path.parent.absolute()
        if folder not in self._folders:
            store = CheckpointFolder(folder, suffix=path.suffix)
            checkpointer = Checkpointer(store, ranks=self._save_ranks, **self._options)
            self._folders[folder] = store, checkpointer
        return self._folders[folder][1]


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
