"""Sent marks: how much of each run a tracker has, in a small file for each run.

A mark is written after the tracker took a batch. A server that is killed in between sends the batch again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
_CAUGHT_UP: Final = "caught-up"
_SUFFIX: Final = ".json"
MAX_SAVES: Final = 200  # newest checkpoints of a run that a mark remembers


@dataclass(frozen=True, slots=True)
class SentMark:
    position: int = 0  # of the last point that the tracker took
    saves: tuple[int, ...] = ()  # ids of the saves that the tracker took
    learning_rate: float | None = None  # of the first optimizer step

    def after(self, *, position: int, saves: tuple[int, ...], learning_rate: float | None) -> SentMark:
        return replace(self, position=position, saves=(*self.saves, *saves)[-MAX_SAVES:], learning_rate=learning_rate)


class SentMarks:
    """The marks of one tracker. Its methods block; ``directory`` is made by the first write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, run_id: str) -> SentMark:
        """A missing or unreadable mark is an empty one: the tracker gets the run from its first point."""
        try:
            found = json.loads(self._path(run_id).read_bytes())
            rate = found["learning_rate"]
            return SentMark(
                int(found["position"]), tuple(map(int, found["saves"])), None if rate is None else float(rate)
            )
        except FileNotFoundError:
            return SentMark()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("mark of a tracker not readable, points are sent again run=%s error=%r", run_id, error)
            return SentMark()

    def write(self, run_id: str, mark: SentMark) -> None:
        """On return the mark survives a kill of the process. Raises OSError."""
        self._put(self._path(run_id), json.dumps(asdict(mark)))

    def forget(self, run_id: str) -> None:
        with suppress(OSError):
            self._path(run_id).unlink()

    def keep_only(self, run_ids: Collection[str]) -> None:
        """Forget the runs that are not among these."""
        kept = {self._path(run_id).name for run_id in run_ids}
        with suppress(OSError):
            for path in self._directory.glob(f"*{_SUFFIX}"):
                if path.name not in kept:
                    path.unlink(missing_ok=True)

    def caught_up_at(self) -> float | None:
        """Epoch seconds at which the tracker last had all points; None: it was never used."""
        try:
            return float((self._directory / _CAUGHT_UP).read_text())
        except (OSError, ValueError):
            return None

    def note_caught_up(self, at: float) -> None:
        """Raises OSError."""
        self._put(self._directory / _CAUGHT_UP, f"{at:.3f}\n")

    def _path(self, run_id: str) -> Path:
        return self._directory / f"{run_id.replace(':', '.')}{_SUFFIX}"

    def _put(self, path: Path, text: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        spare = path.with_name(f".{path.name}.new")
        spare.write_text(text)
        spare.replace(path)
