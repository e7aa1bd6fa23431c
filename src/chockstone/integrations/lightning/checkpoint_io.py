"""The CheckpointIO plugin: Lightning's checkpoints as archives, one file each, at the paths that Lightning chooses."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Unpack
from urllib.parse import urlsplit

import torch

from chockstone.checkpoints.stores.store import file_path
from chockstone.integrations.checkpointer_options import CheckpointerOptions
from chockstone.integrations.lightning.files import ArchiveFiles
from chockstone.integrations.lightning.folder import is_torch_file
from chockstone.integrations.lightning.packages import register_checkpoint_io

if TYPE_CHECKING:
    from lightning.fabric.plugins import CheckpointIO
else:
    CheckpointIO = object  # it is registered with every Lightning that is installed, and inherits from none

_RESUMED: Final = re.compile(r"(last|hpc_ckpt_)")  # files that stand for the newest state, not for a certain one
HPC: Final = "hpc_ckpt_"  # saved when a cluster is about to end the job

MapLocation = Callable[[Any, str], Any] | torch.device | str | dict[str, str] | None  # Any: a storage of torch


class ArchiveCheckpointIO(CheckpointIO):
    """A plugin for ``Trainer(plugins=[…])`` and ``Fabric(plugins=[…])``: saves one archive per checkpoint.

    ``save_checkpoint`` returns after one memory copy; a thread writes the file, which appears whole when it is durable.
    The end of ``fit`` waits for the last save. A save that failed is raised by the next save or by the end of ``fit``.
    """

    def __init__(self, *, background: bool = True, **options: Unpack[CheckpointerOptions]) -> None:
        """``options``: those of ``Checkpointer``. ``buffers`` is 2 by default, because ModelCheckpoint with
        ``save_last=True`` saves twice in a row.

        ``background=False``: every save returns when its file is durable.
        """
        register_checkpoint_io(type(self))
        self._options: CheckpointerOptions = {"buffers": 2, **options}
        self._background = background
        self._files = ArchiveFiles(save_ranks="off", **self._options)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: object = None
    ) -> None:
        """Copy ``checkpoint`` and write it to ``path`` in the background. Called on rank 0 alone."""
        if storage_options is not None:
            raise TypeError(f"{type(self).__name__} takes no storage_options; give options to its constructor")
        target = local_path(path)
        handle = self._files.save(checkpoint, target)
        if not self._background or target.name.startswith(HPC):
            handle.result()

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: MapLocation = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The checkpoint at ``path``, verified. All ranks call it together.

        A directory stands for its newest good checkpoint. If ``last*.ckpt`` is damaged, the newest good checkpoint
        beside it is loaded, and the log names what was skipped. Another damaged file raises DamagedArchive. A file of
        ``torch.save`` is loaded with ``weights_only=True``, whatever ``weights_only`` says.
        """
        del weights_only  # archives hold no code
        target = local_path(path)
        self._files.wait()
        if is_torch_file(target):
            loaded: dict[str, Any] = torch.load(target, map_location=map_location or "cpu", weights_only=True)
            return loaded
        found = self._files.restore(target, dict, walk_back=is_resumed(target))
        return _moved(found, map_location)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete a checkpoint as soon as the saves under way are durable."""
        self._files.delete(local_path(path))

    def wait_for_saves(self) -> None:
        """Return when all saves so far are durable. Raises SaveFailed if one failed."""
        self._files.wait()
        self._files.raise_failed()

    def teardown(self) -> None:
        """Wait for all saves; the end of ``fit`` calls it. Raises SaveFailed if one failed."""
        self._files.close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _make, (type(self), {**self._options, "background": self._background})


def newest_checkpoint(directory: str | os.PathLike[str], *, suffix: str = ".ckpt") -> str | None:
    """What ``fit(ckpt_path=…)`` resumes from in ``directory``; None: there is no checkpoint, so ``fit`` starts anew.

    It is the directory itself, which as ``ckpt_path`` means its newest archive that is not damaged. Where Lightning
    itself saved the newest checkpoint, before the plugin was used or without it, it is the path of that file.
    """
    folder = local_path(directory)
    files = [path for path in folder.glob(f"*{suffix}") if path.is_file()]
    newest = max(files, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return None
    return str(newest if is_torch_file(newest) else folder)


def open_checkpoint(path: str | os.PathLike[str]) -> BinaryIO:
    """A checkpoint as a file in memory that ``LightningModule.load_from_checkpoint`` takes, verified."""
    files = ArchiveFiles(save_ranks="off", load_ranks="off")
    file = io.BytesIO()
    torch.save(files.restore(local_path(path), dict, walk_back=False), file)
    file.seek(0)
    return file


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path as a file of this machine. Raises ValueError for another URL than ``file://``."""
    text = os.fspath(path)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme not in {"", "file"}:
        raise ValueError(
            f"checkpoint path {text!r} is not in a directory: ArchiveCheckpointIO saves to directories. Use a "
            "directory that all hosts see, or save with chockstone.checkpoints.Checkpointer, which knows s3://"
        )
    return Path(file_path(text) if scheme else text).expanduser().absolute()


def _moved(found: dict[str, Any], map_location: MapLocation) -> dict[str, Any]:
    """With its tensors on another device, as ``torch.load`` does. A callable gets storages there, and here nothing."""
    device = map_location.get("cpu") if isinstance(map_location, Mapping) else map_location
    if not isinstance(device, str | torch.device) or torch.device(device).type == "cpu":
        return found
    from lightning_utilities.core.apply_func import apply_to_collection

    moved: dict[str, Any] = apply_to_collection(found, torch.Tensor, lambda tensor: tensor.to(device))
    return moved


def _make(kind: type[ArchiveCheckpointIO], options: dict[str, Any]) -> ArchiveCheckpointIO:
    return kind(**options)


def is_resumed(path: Path) -> bool:
    """Whether a file stands for the newest state of a run, so that an older checkpoint may take its place."""
    return bool(_RESUMED.match(path.name))
