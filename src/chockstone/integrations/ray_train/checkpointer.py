"""The checkpointer of a Ray Train worker group.

    def train_loop(config):
        ...
        with RayTrainCheckpointer() as checkpointer:
            checkpointer.restore(state)
            for step in range(state["step"] + 1, config["steps"] + 1):
                ...
                state["step"] = step
                checkpointer.report({"loss": loss.item()}, state, step=step)

The archive is written by all workers into the run's storage, once: nothing is staged and Ray copies nothing. Ray gets
the checkpoint when it is durable, from a thread of Ray, while training continues. Ray alone deletes checkpoints, by its
``CheckpointConfig``.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Mapping, MutableMapping
from math import isfinite
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import ray.train
from ray.train import Checkpoint, CheckpointConsistencyMode, CheckpointUploadMode
from ray.train.collective import broadcast_from_rank_zero

from chockstone.checkpoints import Archive, Checkpointer, RestoreReceipt, SaveHandle
from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.ranks.peers import rank_and_world_size
from chockstone.checkpoints.reading.archive import Verify
from chockstone.integrations.checkpointer_options import CheckpointerOptions
from chockstone.integrations.ray_train.conversion import store_url

if TYPE_CHECKING:
    from ray.train import ValidationTaskConfig

log = logging.getLogger(__name__)
ARCHIVE: Final = "state"  # the name of the archive in the directory of a Ray checkpoint
_METRICS: Final = "ray_metrics"  # in the metadata of an archive: what was reported with it


class RayTrainCheckpointer:
    """Saves and restores the run that this worker belongs to. Every worker creates one and makes the same calls.

    Leaving ``with`` waits for running saves. Ray waits for them, too, before it ends a run.
    """

    def __init__(self, **options: Unpack[CheckpointerOptions]) -> None:
        """``options``: those of ``Checkpointer``. The storage is that of ``RunConfig(storage_path, name)``.

        Raises CheckpointError in a group of several workers without torch.distributed: they could not save together.
        """
        context = ray.train.get_context()
        _refuse_separate_workers(context.get_world_size())
        storage = context.get_storage()
        self._filesystem = storage.storage_filesystem
        self._directory = storage.experiment_fs_path
        # A restarted group repeats steps, and Ray must not know two checkpoints by one directory.
        self._token: str = broadcast_from_rank_zero(secrets.token_hex(4))
        self._checkpointer = Checkpointer(store_url(self._filesystem, self._directory), **options)
        self._last: SaveHandle | None = None

    def restore(
        self, into: MutableMapping[str, Any], *, verify: Verify = "full", strict: bool = True
    ) -> RestoreReceipt | None:
        """Restore the newest good checkpoint of this run, as ``Checkpointer.restore`` does; None at a first start.

        A checkpoint that became durable just before the group was lost, so that Ray never got it, counts. It is
        reported to Ray here, with its own metrics: call this on all workers, before the first ``report``.
        """
        receipt = self._checkpointer.restore(into, verify=verify, strict=strict)
        if receipt is not None:
            self._report_if_unknown(receipt.name)
        return receipt

    def report(
        self,
        metrics: Mapping[str, Any],
        state: Mapping[str, object] | None = None,
        *,
        step: int | None = None,
        validation: bool | ValidationTaskConfig = False,
    ) -> SaveHandle | None:
        """As ``ray.train.report``. With a ``state`` it is also saved; returns when it may be changed again.

        Ray gets metrics and checkpoint when the checkpoint is durable. If the save fails, Ray ends the run with the
        error of the save, or restarts the group as ``FailureConfig`` says. Report all metrics here, because
        ``ray.train.report`` waits for the saves before it. The archive has the metrics that are numbers.
        """
        if state is None:  # in the background, too: reports keep their order, and one before may wait for its save
            ray.train.report(dict(metrics), checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
            return None
        if step is None:
            raise CheckpointError("a checkpoint needs its step: report(metrics, state, step=step)")
        name = f"checkpoint_{step:08d}-{self._token}"
        reported = dict(metrics)
        handle = self._checkpointer.save(
            state,
            name=f"{name}/{ARCHIVE}",
            step=step,
            metrics=_numbers(reported),
            metadata={_METRICS: _plain(reported)},
        )
        self._last = handle
        ended = threading.Event()
        handle.add_done_callback(lambda _: ended.set())

        def wait_until_durable(checkpoint: Checkpoint, _: str) -> Checkpoint:
            ended.wait()  # result() would lift the rate limit of the save
            handle.result()
            return checkpoint

        ray.train.report(
            reported,
            checkpoint=self._ray_checkpoint(name),
            checkpoint_dir_name=name,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=wait_until_durable,
            delete_local_checkpoint_after_upload=False,
            validation=validation,
        )
        return handle

    def wait_for_saves(self) -> None:
        """Return when all saves so far are durable. Raises the error of the last one, which Ray gets as well."""
        self._checkpointer.wait()
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """Wait for running saves; the checkpointer accepts no further ones."""
        self._checkpointer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ray_checkpoint(self, name: str) -> Checkpoint:
        return Checkpoint(f"{self._directory}/{name}", filesystem=self._filesystem)

    def _report_if_unknown(self, archive: str) -> None:
        """Report a restored checkpoint that Ray does not know: Ray would never delete it, nor return it in a result."""
        name = archive.removesuffix(f"/{ARCHIVE}")
        checkpoint = self._ray_checkpoint(name)
        reported = ray.train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
        known = {each.checkpoint.path for each in reported}
        if not broadcast_from_rank_zero(checkpoint.path not in known):
            return
        with Archive(self._checkpointer.store.open(archive)) as opened:
            manifest = opened.manifest
        log.info("checkpoint reported after a restart name=%s step=%s", name, manifest.step)
        ray.train.report(
            manifest.metadata.get(_METRICS, dict(manifest.metrics)),
            checkpoint=checkpoint,
            checkpoint_dir_name=name,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )


def _refuse_separate_workers(world_size: int) -> None:
    if world_size > 1 and rank_and_world_size() is None:
        raise CheckpointError(
            f"the {world_size} workers of this group have no torch.distributed process group, so they cannot save one "
            "checkpoint together. Use TorchTrainer, or call torch.distributed.init_process_group('gloo') first"
        )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics as JSON; the numbers among them, where the rest is no JSON."""
    try:
        json.dumps(metrics, allow_nan=False)
    except (TypeError, ValueError):
        return {name: value for name, value in _numbers(metrics).items() if isfinite(value)}
    return metrics
