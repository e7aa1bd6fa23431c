"""Between ``ray.train.Checkpoint``, which is a directory on some file system, and a checkpointer on its archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ray.train import Checkpoint

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import InvalidName
from chockstone.checkpoints.stores.store import file_path

_SCHEMES: Final = {"s3": "s3", "gcs": "gs", "abfs": "az"}  # by the name that pyarrow has for a file system


def from_ray(checkpoint: Checkpoint, **options: Any) -> Checkpointer:
    """Return a checkpointer on the archives of a Ray checkpoint, which it reads where they are.

    ``from_ray(result.checkpoint).load()`` is the state that the run saved last. ``options`` are those of
    ``Checkpointer``. In a worker group all workers call it and ``restore``; elsewhere one process suffices.
    """
    return Checkpointer(store_url(checkpoint.filesystem, checkpoint.path), **options)


def to_ray(place: str | Path | Checkpointer) -> Checkpoint:
    """Return the Ray checkpoint of a directory, an ``s3://`` or ``gs://`` URL, or a checkpointer's prefix.

    Nothing is copied. A Ray checkpoint is a directory: it stands for all archives that are in it, and ``from_ray``
    takes the newest good one.
    """
    if isinstance(place, Checkpointer):
        url = place.store.url
        place = f"{url}/{place.prefix}" if place.prefix else url
    text = str(place)
    if text.startswith("file://"):
        text = file_path(text)
    return Checkpoint(text) if "://" in text else Checkpoint.from_directory(str(Path(text).absolute()))


def store_url(filesystem: Any, path: str) -> str:  # Any: a pyarrow file system, which has no types
    """The directory or URL of a place that Ray knows as a pyarrow file system and a path on it."""
    if filesystem.type_name == "local":
        return path
    scheme = _SCHEMES.get(filesystem.type_name)
    if scheme is None:
        raise InvalidName(
            f"{path!r} is on the file system {filesystem.type_name!r}, which the checkpoint library does not reach. "
            "Give RunConfig a storage_path that all nodes see: a directory, s3:// or gs://"
        )
    return f"{scheme}://{path}"
