"""The checkpoint manager of torchtitan on archives of this library.

It is torchtitan's ``CheckpointManager`` in all that is policy: when to save, what to load, exports in the format of
Hugging Face. It differs in how checkpoints are written and read. A step is ``<folder>/step-N/checkpoint.tar``, written
by all ranks while training continues. A load without a step takes the newest good one and skips damaged ones. Old steps
are deleted after the new one is durable. Steps that torchtitan's own manager saved are loaded as torchtitan does it.
"""

from __future__ import annotations

import logging
import re
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Literal

from torchtitan.components.checkpointer.base import DATALOADER, MODEL, OPTIMIZER
from torchtitan.components.checkpointer.dcp import AsyncMode, CheckpointManager

from chockstone.checkpoints import Checkpointer, RestoreReceipt, open_store
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, RestoreFailed
from chockstone.integrations.background_saves import BackgroundSaves
from chockstone.integrations.checkpointer_options import RANK_TIMEOUT_SECONDS
from chockstone.integrations.torchtitan.loader_states import gather_positions, move_to

log = logging.getLogger(__name__)
ARCHIVE: Final = "checkpoint"  # the name of the archive in the folder of a step
_ARCHIVE_OF_STEP: Final = re.compile(rf"step-(\d+)/{ARCHIVE}\Z")
_FOLDER_OF_STEP: Final = re.compile(r"step-(\d+)/?\Z")
_NAMED: Final = 8  # missing parts that a message names


class ArchiveCheckpointManager(CheckpointManager):  # type: ignore[misc]  # torchtitan has no types
    """Saves and restores the parts of a torchtitan training. ``Config.build`` makes one, as it makes torchtitan's own.

    ``receipt`` is that of the last load of an archive.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]  # as above
        """The settings of torchtitan's manager, and those of ``Checkpointer`` that are named here."""

        async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "async"
        """Save mode: "disabled" waits until a checkpoint is durable. The other two are the same: they wait for one copy
        into host memory, which is pinned where there is CUDA."""

        buffers: int = 1
        """Saves under way at once, each with a copy of this rank's part of the state in host memory."""

        bytes_per_second: float | None = None
        """Rate limit of writes while nothing waits for the save."""

        rank_timeout_seconds: float = RANK_TIMEOUT_SECONDS
        """Seconds that a rank may send nothing during a save or a load before the other ranks raise an error."""

    def __init__(self, config: Config, **parts: Any) -> None:
        """``parts``: what torchtitan's trainer passes to its own manager."""
        self.receipt: RestoreReceipt | None = None
        self._damaged: dict[int, str] = {}  # by step, with the damage: found by this load
        self._loading: int | None = None  # the step whose archive is being restored
        self._saves = BackgroundSaves()
        super().__init__(config, **parts)
        if not self.enable:
            return
        if config.async_mode == "async_with_pinned_mem":
            self.async_mode = AsyncMode.ASYNC  # the copy is complete on return, so there is no staging to wait for
        self._checkpointer = Checkpointer(
            self.folder,
            buffers=config.buffers,
            bytes_per_second=config.bytes_per_second,
            rank_timeout_seconds=config.rank_timeout_seconds,
        )

    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: AsyncMode,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Future[None] | None:
        """Save an archive, or what torchtitan saves with ``to_hf``. Returns a future, unless ``async_mode`` waits."""
        if to_hf:
            super().dcp_save(state_dict, checkpoint_id, AsyncMode.DISABLED, enable_garbage_collection, to_hf=True)
            return None
        step = _step_of(checkpoint_id)
        self._damaged.pop(step, None)  # it is replaced
        model, others = self._divide(state_dict)
        if DATALOADER in others:
            others[DATALOADER] = gather_positions(others[DATALOADER], group=self.pg)
        handle = self._checkpointer.save(
            {MODEL: model, **others}, name=f"step-{step}/{ARCHIVE}", step=step, overwrite=True
        )
        ended = self._saves.add(handle, checkpoint_id, then=self._delete_old_steps)
        if async_mode is not AsyncMode.DISABLED:
            return ended
        handle.hurry()
        ended.result()
        return None

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        """Restore the archive in that folder; without one, load what torchtitan saved there."""
        if from_hf or not _holds_archive(checkpoint_id):
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        step = _step_of(checkpoint_id) if _FOLDER_OF_STEP.search(checkpoint_id) else None
        if step is not None and checkpoint_id == self._create_checkpoint_id(step):
            self._loading = step
            self._restore(self._checkpointer, f"step-{step}/{ARCHIVE}", state_dict)
        else:
            with Checkpointer(checkpoint_id) as elsewhere:
                self._restore(elsewhere, ARCHIVE, state_dict)

    def _load(self, step: int = -1) -> bool:
        """As torchtitan's; without a step, skip damaged checkpoints."""
        self._damaged.clear()
        while True:
            self._loading = None
            try:
                return bool(super()._load(step))
            except DamagedArchive as error:
                if step != -1 or self._loading is None:
                    raise
                self._damaged[self._loading] = str(error)
                log.warning("checkpoint skipped folder=%s step=%d damage=%s", self.folder, self._loading, error)

    def _find_load_step(self, folder: str = "") -> int:
        """The newest step that is not known to be damaged; -1 if there never was one."""
        of_torchtitan = int(super()._find_load_step(folder))
        if folder:  # not this training's
            return of_torchtitan
        names = [_ARCHIVE_OF_STEP.match(entry.name) for entry in self._checkpointer.store.entries()]
        steps = {int(found[1]) for found in names if found} - self._damaged.keys()
        newest = max(steps | {of_torchtitan})
        if newest == -1 and self._damaged:
            listed = "".join(f"\n  step {step}: {damage}" for step, damage in self._damaged.items())
            raise DamagedArchive(f"none of the checkpoints in {self.folder!r} can be used:{listed}")
        return newest

    def _purge_stale_checkpoints(self) -> None:
        """torchtitan calls this when a save has begun. Old steps are deleted when the new one is durable."""

    def _close(self) -> None:
        if hasattr(self, "_checkpointer"):  # else __init__ raised
            self._checkpointer.close()
        self._saves.wait()
        super()._close()

    def wait_for_saves(self) -> None:
        """Return when all saves so far are durable. Raises SaveFailed if one failed."""
        self._saves.wait()
        self._saves.raise_failed()

    def _divide(self, state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tensors of the model, and the other parts by name. torchtitan puts both into one dict."""
        others = {key: part for key, part in state_dict.items() if key in self.states and part is self.states[key]}
        return {key: tensor for key, tensor in state_dict.items() if key not in others}, others

    def _restore(self, checkpointer: Checkpointer, name: str, state_dict: dict[str, Any]) -> None:
        """Fill the model and the other parts that torchtitan asks for. Whatever else the archive has is ignored."""
        model, others = self._divide(state_dict)
        into: dict[str, Any] = {MODEL: model, **others}
        if OPTIMIZER in others:
            into[OPTIMIZER] = dict(others[OPTIMIZER].state_dict())  # so that a missing moment is an error
        if DATALOADER in others:
            into[DATALOADER] = None  # its state has the positions of all ranks
        self.receipt = receipt = checkpointer.restore(into, name=name, strict=False)
        if receipt.missing:
            more = f" and {len(receipt.missing) - _NAMED} more" if len(receipt.missing) > _NAMED else ""
            raise RestoreFailed(
                f"checkpoint {receipt.name!r} of {receipt.url} lacks {', '.join(receipt.missing[:_NAMED])}{more}. It "
                "is of another model, or of the last step of a training with last_save_model_only. Load another step, "
                "or give it as initial_load_path with initial_load_model_only"
            )
        log.info("checkpoint restored name=%s step=%s seconds=%.3f", receipt.name, receipt.step, receipt.seconds)
        self.states[MODEL].load_state_dict(model)
        if OPTIMIZER in others:
            others[OPTIMIZER].load_state_dict(into[OPTIMIZER])
        if DATALOADER in others:
            move_to(others[DATALOADER], into[DATALOADER])

    def _delete_old_steps(self) -> None:
        """Keep the ``keep_latest_k`` steps that were saved last, which need not have the highest numbers.

        After a walk back, damaged steps have higher numbers than the new ones. They neither count nor are deleted.
        """
        if not self._should_purge():
            return
        found = [_ARCHIVE_OF_STEP.match(each.name) for each in self._checkpointer.checkpoints() if each.manifest]
        steps = [int(each[1]) for each in found if each and int(each[1]) not in self._damaged]  # oldest first
        for step in steps[: -self.keep_latest_k]:
            self.purge_queue.put(self._create_checkpoint_id(step))


def _step_of(checkpoint_id: str) -> int:
    found = _FOLDER_OF_STEP.search(checkpoint_id)
    if found is None:
        raise ValueError(f"{checkpoint_id!r} is not the folder of a step: it should end with step- and a number")
    return int(found[1])


def _holds_archive(folder: str) -> bool:
    try:
        open_store(folder).stat(ARCHIVE)
    except CheckpointMissing:
        return False
    return True
