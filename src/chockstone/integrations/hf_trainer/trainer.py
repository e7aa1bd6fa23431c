"""A Trainer whose checkpoints are archives, and the function that makes one of any Trainer.

The Trainer decides when to save, what the trainer state holds and which checkpoint is the best, as ever. Its methods
that write or read weights are replaced. Parts that it keeps private are named here and nowhere else.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final, Unpack

from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils.import_utils import is_sagemaker_mp_enabled, is_torch_xla_available

from chockstone.checkpoints import Retention, Store
from chockstone.checkpoints.errors import CheckpointError
from chockstone.integrations.checkpointer_options import CheckpointerOptions
from chockstone.integrations.hf_trainer.parts import plain_model
from chockstone.integrations.hf_trainer.resumed import ResumedCheckpoint
from chockstone.integrations.hf_trainer.trainer_checkpoints import TrainerCheckpoints

_SENTINEL: Final = "checkpoint-is-incomplete.txt"  # which the Trainer writes before it saves on SIGTERM


class TrainerUnsupported(CheckpointError):
    """This Trainer is set up in a way that its state cannot be saved as an archive."""


class ArchiveTrainer(Trainer):
    """A Trainer that saves and resumes archives once checkpoints are attached; before, it is as its base class.

    ``attach`` gives any Trainer this class. It may also be inherited from: ``class Mine(ArchiveTrainer, SFTTrainer)``.
    """

    _archives: TrainerCheckpoints | None = None

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **options: Any,
    ) -> Any:
        """As ``Trainer.train``. ``resume_from_checkpoint="auto"`` resumes from the newest good checkpoint, if any."""
        if self._archives is None or trial is not None:
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval, **options)
        with self._archives.training(self, resume_from_checkpoint) as source:
            return super().train(source, trial, ignore_keys_for_eval, **options)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._archives is None or trial is not None:
            super()._save_checkpoint(model, trial)
            return
        with self._archives.capture() as captured:
            super()._save_checkpoint(model, trial)
            self._archives.save(self, captured)
        _remove_mark(Path(self._get_output_dir(None), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"))

    def _get_output_dir(self, trial: Any) -> str:
        if self._archives is not None and self._archives.captured is not None:
            return str(self._archives.captured.directory)
        return str(super()._get_output_dir(trial))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if _internal_call and self._archives is not None and self._archives.captured is not None:
            os.makedirs(str(output_dir), exist_ok=True)
            return
        super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._archives is None or self._archives.captured is None:
            super()._save_optimizer_and_scheduler(output_dir)
        else:
            self._archives.captured.has_training = True

    def _save_scaler(self, output_dir: str) -> None:
        if self._archives is None or self._archives.captured is None:
            super()._save_scaler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        if self._archives is None or self._archives.captured is None:
            super()._save_rng_state(output_dir)

    def _archive_at(self, directory: str | None) -> ResumedCheckpoint | None:
        return None if self._archives is None else self._archives.resumed_at(directory)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        resumed = self._archive_at(resume_from_checkpoint)
        if resumed is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            resumed.restore_model(plain_model(self))

    def _init_training_state(self, *arguments: Any, **options: Any) -> Any:
        result = super()._init_training_state(*arguments, **options)
        if self._archives is not None and self.state.best_model_checkpoint is None:
            self.state.best_model_checkpoint = self._archives.best_location(vars(self.state))
        return result

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        resumed = self._archive_at(checkpoint)
        if resumed is None:
            super()._load_optimizer_and_scheduler(checkpoint)
        else:
            resumed.load_optimizer_and_scheduler(self.optimizer, self.lr_scheduler)

    def _load_scaler(self, checkpoint: str | None) -> None:
        resumed = self._archive_at(checkpoint)
        if resumed is None:
            super()._load_scaler(checkpoint)
        else:
            resumed.load_scaler(getattr(self.accelerator, "scaler", None))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        resumed = self._archive_at(checkpoint)
        if resumed is None:
            super()._load_rng_state(checkpoint)
        else:
            resumed.load_random()

    def _load_best_model(self) -> None:
        if self._archives is None or os.path.isdir(str(self.state.best_model_checkpoint)):
            super()._load_best_model()
        else:
            self._archives.load_best_model(self)


def attach(
    trainer: Trainer,
    store: str | Path | Store,
    *,
    prefix: str = "",
    retention: Retention | None = None,
    **options: Unpack[CheckpointerOptions],
) -> TrainerCheckpoints:
    """Let ``trainer`` save and resume archives in ``store``: a directory, or the URL of an object store.

    Call it on all ranks, before ``train``. ``retention`` replaces the Trainer's ``save_total_limit``. ``options``
    are those of ``Checkpointer``. Raises TrainerUnsupported where the state of the Trainer cannot be an archive.
    """
    _refuse_unsupported(trainer)
    checkpoints = TrainerCheckpoints(store, prefix=prefix, retention=retention, **options)
    if not isinstance(trainer, ArchiveTrainer):
        trainer.__class__ = _archive_class(type(trainer))
    assert isinstance(trainer, ArchiveTrainer)
    trainer._archives = checkpoints
    return checkpoints


def _archive_class(base: type[Trainer]) -> type[Trainer]:
    """The class with our methods before those of ``base``, under the name of ``base``, which logs and cards show."""
    return type(base.__name__, (ArchiveTrainer, base), {"__module__": base.__module__, "__doc__": base.__doc__})


def _refuse_unsupported(trainer: Trainer) -> None:
    args = trainer.args
    why = None
    if trainer.is_deepspeed_enabled:
        why = "DeepSpeed keeps the state in its own engine. Use FSDP2 or DDP"
    elif is_torch_xla_available() or is_sagemaker_mp_enabled():
        why = "the state of XLA and SageMaker devices is not supported"
    elif trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version != 2:
        why = "FSDP1 flattens parameters. Set fsdp_config={'version': 2}"
    elif args.push_to_hub and args.hub_strategy != HubStrategy.END:
        why = (
            f"hub_strategy={HubStrategy(args.hub_strategy).value!r} uploads directories that are not written any more. "
            "Set hub_strategy='end', or export a checkpoint and upload that"
        )
    if why is not None:
        raise TrainerUnsupported(f"checkpoints of this Trainer cannot be archives: {why}")


def _remove_mark(folder: Path) -> None:
    """Remove the folder that a save on SIGTERM made, if it holds nothing but its mark."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    if names == [_SENTINEL]:
        shutil.rmtree(folder, ignore_errors=True)
