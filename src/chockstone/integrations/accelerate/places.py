"""Places: where the checkpoints of an Accelerator are. A checkpoint is a directory with one archive, ``state.tar``.

Scripts list such directories, delete them and let hooks write files into them, so they stay directories.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chockstone.checkpoints.stores.store import SUFFIX

log = logging.getLogger(__name__)
ARCHIVE: Final = "state"  # the name of the archive in each directory
_NUMBERED: Final = re.compile(r"checkpoint_(\d+)\Z")
_OF_ACCELERATE: Final = "random_states_0.pkl"  # which Accelerate's own save_state always writes


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """A checkpoint directory: ``store`` is the folder that it is in, ``directory`` its name there."""

    store: str
    directory: str

    @property
    def name(self) -> str:
        """Of the archive in the store."""
        return f"{self.directory}/{ARCHIVE}"

    @property
    def path(self) -> str:
        return f"{self.store}/{self.directory}"

    @property
    def is_local(self) -> bool:
        return "://" not in self.store

    def has_archive(self) -> bool:
        """Whether a local directory holds an archive."""
        return self.is_local and os.path.isfile(f"{self.path}/{ARCHIVE}{SUFFIX}")


def place_of(directory: str | os.PathLike[str]) -> CheckpointPlace:
    """The place that a path or URL means."""
    text = os.fspath(directory)
    if "://" not in text:
        text = os.path.abspath(os.path.expanduser(text))
    store, _, name = text.rstrip("/").rpartition("/")
    if not name or not store or store.endswith("/"):
        raise ValueError(f"{text!r} cannot be a checkpoint: give a directory in a folder, such as 'run/checkpoint_1'")
    return CheckpointPlace(store, name)


def is_foreign(directory: str | os.PathLike[str]) -> bool:
    """Whether Accelerate itself wrote a local directory."""
    return os.path.isfile(os.path.join(os.path.expanduser(directory), _OF_ACCELERATE))


def numbered(folder: str) -> dict[int, CheckpointPlace]:
    """The directories ``checkpoint_N`` of a local folder, lowest number first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found = {int(match[1]): CheckpointPlace(folder, name) for name in names if (match := _NUMBERED.match(name))}
    return dict(sorted(found.items()))


def delete_oldest(folder: str, *, keep: int) -> None:
    """Delete all but the ``keep`` checkpoints that were saved last, whatever their numbers: a run may have begun anew.

    Directories without an archive do not count.
    """
    places = [place for place in numbered(folder).values() if place.has_archive()]
    places.sort(key=lambda place: os.stat(f"{place.path}/{ARCHIVE}{SUFFIX}").st_mtime_ns)
    for place in places[: max(0, len(places) - max(1, keep))]:
        try:
            shutil.rmtree(Path(place.path))
        except OSError as error:
            log.warning("checkpoint not deleted path=%s error=%s", place.path, error)
        else:
            log.info("checkpoint deleted path=%s reason=total_limit", place.path)
