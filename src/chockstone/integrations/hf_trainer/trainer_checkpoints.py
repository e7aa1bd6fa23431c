"""The checkpoints of one Trainer: archives in one prefix of a store, written in the background."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import transformers
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from chockstone.checkpoints import Archive, Checkpointer, RestoreReceipt, Retention, SaveHandle, Store
from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.integrations.accelerate.rank_0 import from_rank_0
from chockstone.integrations.checkpointer_options import CheckpointerOptions
from chockstone.integrations.hf_trainer.directory import export_hf_directory
from chockstone.integrations.hf_trainer.model_files import model_files
from chockstone.integrations.hf_trainer.parts import (
    TRAINER_STATE,
    check_model_fits,
    load_adapters,
    model_parts,
    model_targets,
    plain_model,
    training_parts,
)
from chockstone.integrations.hf_trainer.resumed import ResumedCheckpoint

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CapturedSave:
    """What the Trainer did in a save of its own, without the weights: a directory, and whether training is saved."""

    directory: Path
    has_training: bool = False  # False with save_only_model

    def trainer_state(self) -> dict[str, Any]:
        """The trainer state that the Trainer wrote; empty on ranks that write none."""
        for path in self.directory.rglob(TRAINER_STATE_NAME):
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return state
        return {}


class TrainerCheckpoints:
    """The archives of one Trainer. ``attach`` makes it. All ranks use it alike."""

    def __init__(
        self,
        store: str | Path | Store,
        *,
        prefix: str = "",
        retention: Retention | None = None,
        **options: Unpack[CheckpointerOptions],
    ) -> None:
        self._checkpointer = Checkpointer(store, prefix=prefix, retention=retention, **options)
        self._retention = retention
        self._files: dict[str, bytes] | None = None
        self._handle: SaveHandle | None = None
        self._captured: CapturedSave | None = None
        self._resumed: ResumedCheckpoint | None = None
        self._receipt: RestoreReceipt | None = None

    @property
    def receipt(self) -> RestoreReceipt | None:
        """What the last training resumed from; None if it started fresh. Print it to see all."""
        return self._receipt if self._resumed is None else self._resumed.receipt

    @property
    def last_save(self) -> SaveHandle | None:
        """The last save that was begun."""
        return self._handle

    @property
    def captured(self) -> CapturedSave | None:
        """The save that the Trainer is in the middle of."""
        return self._captured

    def wait_for_saves(self) -> None:
        """Return when all saves so far are durable. Raises the error of the last one; ``save`` raises earlier ones."""
        self._checkpointer.wait()
        if self._handle is not None:
            self._handle.result()

    def close(self) -> None:
        """Wait for running saves; no further save is possible."""
        self._checkpointer.close()

    @contextmanager
    def training(self, trainer: Trainer, resume: str | bool | None) -> Iterator[str | bool | None]:
        """Around one training: yields what the Trainer is to resume from. At the end all saves are durable."""
        source = self._resolve(trainer, resume)
        self._files = self._receipt = None
        self._resumed = source if isinstance(source, ResumedCheckpoint) else None
        try:
            if isinstance(source, ResumedCheckpoint):
                if trainer.is_fsdp_enabled:
                    source.prepare_sharded()
                yield str(source.directory)
            else:
                yield source
        except BaseException:
            self._checkpointer.wait()  # what is being written becomes durable; the error of the training is raised
            raise
        else:
            self.wait_for_saves()
        finally:
            if self._resumed is not None:
                self._receipt = self._resumed.receipt
                self._resumed.close()
                self._resumed = None

    def resumed_at(self, directory: str | None) -> ResumedCheckpoint | None:
        """The checkpoint that this directory stands for; None: an ordinary directory of the Trainer."""
        if self._resumed is None or directory != str(self._resumed.directory):
            return None
        return self._resumed

    @contextmanager
    def capture(self) -> Iterator[CapturedSave]:
        """While the Trainer runs its own save: it writes its small files to a temporary directory, and no weights."""
        with TemporaryDirectory(prefix="chockstone-save-") as place:
            self._captured = CapturedSave(Path(place))
            try:
                yield self._captured
            finally:
                self._captured = None

    def save(self, trainer: Trainer, captured: CapturedSave) -> SaveHandle:
        """Copy the state of the Trainer and write it in the background. Raises the error of an earlier save."""
        step, state = trainer.state.global_step, trainer.state
        if state.best_global_step == step:
            state.best_model_checkpoint = self.location(self._name_of(step))
        parts = model_parts(trainer)
        if captured.has_training:
            parts |= training_parts(trainer)
        parts[TRAINER_STATE] = captured.trainer_state() | {"best_model_checkpoint": state.best_model_checkpoint}
        if self._files is None:
            self._files = model_files(trainer) if trainer.args.process_index == 0 else {}
        self._checkpointer.retention = self._retention_after(trainer)
        self._handle = self._checkpointer.save(
            parts,
            step=step,
            files=self._files,
            metrics=_metrics(state.log_history, step),
            metadata={"host": "transformers.Trainer", "transformers": transformers.__version__},
            overwrite=True,
        )
        return self._handle

    def load_best_model(self, trainer: Trainer) -> None:
        """Restore the model of the best checkpoint, which may be the one that is being written: waits for it."""
        self.wait_for_saves()
        name = self._name_of(trainer.state.best_global_step or 0)
        model = plain_model(trainer)
        parts = model_targets(model, in_place=trainer.is_fsdp_enabled)
        receipt = self._checkpointer.restore(parts, name=name, strict=False)
        check_model_fits(model, receipt)
        if not trainer.is_fsdp_enabled:
            load_adapters(model, parts)
        log.info("best model restored name=%s metric=%s", name, trainer.state.best_metric)

    def export(self, directory: Path, *, name: str | None = None) -> tuple[str, ...]:
        """Write a checkpoint, by default the newest, as an ordinary directory; see ``export_hf_directory``.

        ``name``: such as ``step-00000500``, with or without the prefix.
        """
        self.wait_for_saves()
        stored = [found.name for found in self._checkpointer.checkpoints() if found.manifest is not None]
        if name is None and not stored:
            raise CheckpointMissing(f"there is no checkpoint to export in {self._checkpointer.store.url}")
        found = stored[-1] if name is None else self._find(name, stored) or name
        with Archive(self._checkpointer.store.open(found)) as archive:
            return export_hf_directory(archive, directory)

    def location(self, name: str) -> str:
        """Where the archive of that name is: a path, or the URL of an object."""
        store = self._checkpointer.store
        return str(store.path(name)) if isinstance(store, FileStore) else f"{store.url}/{name}.tar"

    def best_location(self, state: Mapping[str, Any]) -> str | None:
        """Where the best checkpoint of a trainer state is; None: it has none, or it is not in the store."""
        best = state.get("best_global_step")
        if best is None or self._name_of(best) not in self._names():
            return None
        return self.location(self._name_of(best))

    def _name_of(self, step: int) -> str:
        name = f"step-{step:08d}"
        return f"{self._checkpointer.prefix}/{name}" if self._checkpointer.prefix else name

    def _names(self) -> list[str]:
        return [entry.name for entry in self._checkpointer.store.entries(self._checkpointer.prefix)]

    def _resolve(self, trainer: Trainer, resume: str | bool | None) -> ResumedCheckpoint | str | bool | None:
        """What to resume from: one of our checkpoints, or what the Trainer itself is to make of the argument."""
        if not resume or (isinstance(resume, str) and os.path.isdir(resume)):
            return resume or None
        is_newest = resume is True or resume == "auto"
        names = from_rank_0(self._names() if trainer.args.process_index == 0 else [])
        if is_newest and names:
            return self._resumed_from(None)
        if not is_newest:
            found = self._find(str(resume), names)
            return str(resume) if found is None else self._resumed_from(found)  # the Trainer says what is wrong with it
        output_dir = str(trainer.args.output_dir)
        if resume is True or not os.path.isdir(output_dir):
            return resume if resume is True else None
        ordinary: str | None = get_last_checkpoint(output_dir)  # type: ignore[no-untyped-call]  # it has none
        log.info("no archive to resume from; directory=%s", ordinary)
        return ordinary

    def _find(self, wanted: str, names: Sequence[str]) -> str | None:
        """The full name of the checkpoint that the caller calls by its name, its last part or its place."""
        for name in names:
            if wanted in (name, name.rpartition("/")[2], self.location(name)) or self._is_file(name, wanted):
                return name
        return None

    def _is_file(self, name: str, path: str) -> bool:
        store = self._checkpointer.store
        return isinstance(store, FileStore) and store.path(name) == Path(path).expanduser().absolute()

    def _resumed_from(self, name: str | None) -> ResumedCheckpoint:
        return ResumedCheckpoint(self._checkpointer, name, rewrite=self._without_best)

    def _without_best(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The Trainer would look for a directory and warn; ``best_location`` is set when it has read the state."""
        return {**state, "best_model_checkpoint": None}

    def _retention_after(self, trainer: Trainer) -> Retention | None:
        """The policy for the next save: the caller's, or ``save_total_limit``. The best checkpoint always stays."""
        best = trainer.state.best_global_step if trainer.state.best_model_checkpoint is not None else None
        pinned = frozenset() if best is None else frozenset({self._name_of(best)})
        if self._retention is not None:
            return replace(self._retention, pinned=self._retention.pinned | pinned)
        limit = trainer.args.save_total_limit
        if limit is None or limit <= 0 or trainer.args.process_index > 0:  # rank 0 removes
            return None
        newest = sorted({*self._names(), self._name_of(trainer.state.global_step)})[-limit:]
        return Retention(keep_last=limit if pinned <= set(newest) else max(1, limit - 1), pinned=pinned)


def _metrics(history: Sequence[Mapping[str, Any]], step: int) -> dict[str, float]:
    """What was logged at this step, for retention by metric."""
    logged = {name: value for entry in history if entry.get("step") == step for name, value in entry.items()}
    return {
        name: float(value)
        for name, value in logged.items()
        if name != "step" and isinstance(value, int | float) and math.isfinite(value)
    }
