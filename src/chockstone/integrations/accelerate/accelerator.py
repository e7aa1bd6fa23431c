"""The accelerator: ``accelerate.Accelerator`` with ``save_state`` and ``load_state`` on archives."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any, Final

from accelerate import Accelerator
from accelerate.utils import DistributedType

from chockstone.checkpoints import Admission, Checkpointer, RandomState, RestoreReceipt
from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing
from chockstone.integrations.accelerate.loaders import LoaderState
from chockstone.integrations.accelerate.places import (
    CheckpointPlace,
    delete_oldest,
    is_foreign,
    numbered,
    place_of,
)
from chockstone.integrations.accelerate.rank_0 import choose_newest
from chockstone.integrations.background_saves import BackgroundSaves
from chockstone.integrations.checkpointer_options import RANK_TIMEOUT_SECONDS, CheckpointerOptions

log = logging.getLogger(__name__)
_UNSUPPORTED: Final = {DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA}
_MAP_LOCATIONS: Final = (None, "cpu", "on_device")


class ArchiveAccelerator(Accelerator):  # type: ignore[misc]  # accelerate has no types
    """Saves models, optimizers, schedulers, loaders, scaler, random states and registered objects as one archive.

    ``save_state`` returns after one memory copy, and ``end_training`` waits for the last save. A save that failed is
    raised by the next ``save_state`` or by ``end_training``. All ranks call these methods, and write one archive.
    """

    def __init__(
        self,
        *args: Any,
        admission: Admission | None = None,
        buffers: int = 1,
        bytes_per_second: float | None = None,
        rank_timeout_seconds: float = RANK_TIMEOUT_SECONDS,
        **options: Any,
    ) -> None:
        """Takes what ``Accelerator`` takes, and the options of ``Checkpointer`` that are named here."""
        super().__init__(*args, **options)
        self._options: CheckpointerOptions = {
            "admission": admission,
            "buffers": buffers,
            "bytes_per_second": bytes_per_second,
            "rank_timeout_seconds": rank_timeout_seconds,
        }
        self._checkpointers: dict[str, Checkpointer] = {}  # by store
        self._saves = BackgroundSaves()

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **options: Any
    ) -> str:
        """Copy the state and write it to ``output_dir/state.tar`` in the background; returns ``output_dir``.

        With ``automatic_checkpoint_naming`` the directory is ``checkpoints/checkpoint_N`` below the project directory,
        and ``total_limit`` deletes the oldest ones once the new one is durable. ``safe_serialization`` makes no
        difference: archives never hold a pickle. Raises SaveFailed for an earlier save that failed.
        """
        del safe_serialization
        if options:
            raise TypeError(f"save_state() of ArchiveAccelerator does not take {', '.join(map(repr, options))}")
        self._saves.raise_failed()
        self._refuse_unsupported()
        is_automatic = self.project_configuration.automatic_checkpoint_naming
        place = self._next_place() if is_automatic else _required(output_dir)
        state = {"models": self._call_save_hooks(place), **self._live()}
        handle = self._checkpointer(place.store).save(
            state, name=place.name, step=self.save_iteration if is_automatic else None, overwrite=not is_automatic
        )
        self._saves.add(handle, place.path, then=self._delete_oldest if is_automatic else None)
        self.project_configuration.iteration += 1
        return place.path

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> RestoreReceipt | None:
        """Restore a checkpoint, verified, and return the receipt.

        ``input_dir`` is a checkpoint, or a folder of checkpoints: then the newest one that is not damaged is restored,
        and the receipt names the skipped ones. Without ``input_dir`` it is the folder of
        ``automatic_checkpoint_naming``, and numbering continues after its highest number; None is returned if that
        folder has no checkpoint yet: a first start. A directory that Accelerate itself wrote is loaded as Accelerate
        does, and None is returned; so is the newest one of a folder that holds no other checkpoints.

        ``strict=False`` takes what fits. ``map_location`` makes no difference: tensors are restored where they are.
        """
        self._saves.wait()
        if options.get("map_location") not in _MAP_LOCATIONS:
            raise TypeError("Unsupported optimizer map location passed: choose None, 'cpu' or 'on_device'")
        if input_dir is not None and is_foreign(input_dir) and not place_of(input_dir).has_archive():
            super().load_state(os.fspath(input_dir), load_kwargs, **options)
            return None
        self._refuse_unsupported()
        strict = bool(options.get("strict", True))
        if input_dir is None:
            return self._load_automatic(load_kwargs, strict=strict, **options)
        place = place_of(input_dir)
        if place.has_archive():
            return self._restore(place.store, place, strict=strict)
        receipt = self._restore_newest(place.path, strict=strict)
        if receipt is None:
            raise CheckpointMissing(
                f"{place.path!r} holds neither a checkpoint nor a folder of checkpoints. A save that was interrupted "
                "leaves none; give the folder that the checkpoints are in, to restore the newest good one"
            )
        return receipt

    def wait_for_saves(self) -> None:
        """Return when all saves so far are durable. Raises SaveFailed if one failed."""
        self._saves.wait()
        self._saves.raise_failed()

    def end_training(self) -> None:
        """Wait for the last save, then end trackers and the process group. Raises SaveFailed if a save failed."""
        checkpointers, self._checkpointers = self._checkpointers, {}
        for checkpointer in checkpointers.values():
            checkpointer.close()
        self._saves.wait()
        super().end_training()
        self._saves.raise_failed()

    def _live(self) -> dict[str, Any]:
        """All but the models: live objects, to save and to restore into."""
        live: dict[str, Any] = {
            "optimizers": [getattr(each, "optimizer", each) for each in self._optimizers],
            "schedulers": [getattr(each, "scheduler", each) for each in self._schedulers],
            "loaders": [LoaderState(each) for each in self._dataloaders],
            "custom": list(self._custom_objects),
            "step": self.step,
            "random": RandomState(per_rank=True),
        }
        return live if self.scaler is None else {**live, "scaler": self.scaler}

    def _restore(self, store: str, place: CheckpointPlace | None, *, strict: bool) -> RestoreReceipt | None:
        """Restore the checkpoint at a place, or the newest good one of the store."""
        models = list(self._models)
        if place is not None:
            for hook in self._load_model_state_pre_hook.values():
                hook(models, place.path)
        into = {"models": self._plain(models), **self._live()}
        name = None if place is None else place.name
        receipt = self._checkpointer(store).restore(into, name=name, strict=strict)
        if receipt is not None:
            self.step = into["step"]
            log.log(logging.WARNING if receipt.skipped else logging.INFO, "%s", receipt)
        return receipt

    def _load_automatic(
        self, load_kwargs: dict[str, Any] | None, *, strict: bool, **options: Any
    ) -> RestoreReceipt | None:
        folder = self._automatic_folder()
        places = numbered(folder)
        receipt = self._restore_newest(folder, strict=strict)
        if receipt is None and places and is_foreign(places[max(places)].path):  # the run began without archives
            super().load_state(places[max(places)].path, load_kwargs, **options)
        self.project_configuration.iteration = max(places, default=-1) + 1
        return receipt

    def _restore_newest(self, folder: str, *, strict: bool) -> RestoreReceipt | None:
        if not self._load_model_state_pre_hook:
            return self._restore(folder, None, strict=strict)
        self._saves.wait()
        chosen = choose_newest(self._checkpointer(folder))  # hooks need to know its directory before the restore
        if chosen is None:
            return None
        directory = chosen.name.rpartition("/")[0]
        place = CheckpointPlace(folder, directory) if directory else place_of(folder)  # the folder is a checkpoint
        receipt = self._restore(place.store, place, strict=strict)
        return receipt and replace(receipt, skipped=chosen.skipped, steps_lost=chosen.steps_lost)

    def _call_save_hooks(self, place: CheckpointPlace) -> list[Any]:
        """The states of the models, without those that a hook takes out of the list because it saves them itself."""
        weights = [model.state_dict() for model in self._plain(self._models)]
        for hook in self._save_model_state_pre_hook.values():
            if not place.is_local:
                raise CheckpointError(f"hooks write to directories, and {place.path!r} is none: save to a directory")
            os.makedirs(place.path, exist_ok=True)
            hook(self._models, weights, place.path)
        return weights

    def _plain(self, models: list[Any]) -> list[Any]:
        """The models without wrappers, whose names depend on how many processes there are."""
        return [self.unwrap_model(model, keep_torch_compile=False) for model in models]

    def _next_place(self) -> CheckpointPlace:
        place = CheckpointPlace(self._automatic_folder(), f"checkpoint_{self.save_iteration}")
        if place.has_archive():
            raise ValueError(
                f"Checkpoint directory {place.path} ({self.save_iteration}) already exists. Call load_state(), which "
                "continues the numbering, or set project_configuration.iteration"
            )
        return place

    def _automatic_folder(self) -> str:
        if not self.project_configuration.automatic_checkpoint_naming:
            raise ValueError("No input_dir provided and automatic checkpoint naming is disabled.")
        return os.path.abspath(os.path.join(self.project_dir or ".", "checkpoints"))

    def _checkpointer(self, store: str) -> Checkpointer:
        if store not in self._checkpointers:
            self._checkpointers[store] = Checkpointer(store, **self._options)
        return self._checkpointers[store]

    def _delete_oldest(self) -> None:
        """Apply ``total_limit``, when a save is durable."""
        limit = self.project_configuration.total_limit
        if limit is not None and self.is_main_process:
            delete_oldest(self._automatic_folder(), keep=limit)

    def _refuse_unsupported(self) -> None:
        kind = self.distributed_type
        if kind in _UNSUPPORTED or (kind == DistributedType.FSDP and not self.is_fsdp2):
            raise CheckpointError(
                f"ArchiveAccelerator cannot save or load with {kind.value}: use DDP or FSDP2 (fsdp_version=2), or "
                "accelerate.Accelerator"
            )


def _required(output_dir: str | os.PathLike[str] | None) -> CheckpointPlace:
    if output_dir is None:
        raise ValueError("save_state() needs output_dir, or ProjectConfiguration(automatic_checkpoint_naming=True)")
    return place_of(output_dir)
