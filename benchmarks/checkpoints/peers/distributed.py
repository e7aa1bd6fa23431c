"""torch.distributed.checkpoint (DCP) in a process group of one: sync, async thread and async process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch.distributed as distributed
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from benchmarks.checkpoints.contestant import Contestant, FreshNames, Start
from benchmarks.checkpoints.states import State
from benchmarks.harness.disk import fsync_tree


def contestants(directory: Path) -> list[Contestant]:
    names = FreshNames(directory)
    rendezvous = names.next("dcp-rendezvous")
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)

    def save(state: State) -> Path:
        path = names.next("dcp")
        state_dict_saver.save(state.tree, checkpoint_id=path)
        fsync_tree(path)
        return path

    def restore(path: Path, into: State) -> None:
        state_dict_loader.load(into.tree, checkpoint_id=path)

    def start_with(kind: AsyncCheckpointerType) -> Start:
        def start(state: State) -> Callable[[], Path]:
            path = names.next(f"dcp-{kind.value}")
            response = state_dict_saver.async_save(state.tree, checkpoint_id=path, async_checkpointer_type=kind)

            def wait() -> Path:
                _upload_of(response).result()
                fsync_tree(path)
                return path

            return wait

        return start

    return [
        Contestant("DCP", save=save, restore=restore, close=distributed.destroy_process_group),
        Contestant("DCP async, thread", start=start_with(AsyncCheckpointerType.THREAD), restore=restore),
        Contestant(
            "DCP async, process",
            start=start_with(AsyncCheckpointerType.PROCESS),
            restore=restore,
            slow=True,
            close=_end_daemon,
        ),
    ]


def _upload_of(response: Future[None] | AsyncSaveResponse) -> Future[None]:
    return response.upload_completion if isinstance(response, AsyncSaveResponse) else response


def _end_daemon() -> None:
    """The daemon of the process mode lives in a private global; its finalizer ends it."""
    from torch.distributed.checkpoint import _async_process_executor

    _async_process_executor._CHECKPOINT_PROCESS = None
