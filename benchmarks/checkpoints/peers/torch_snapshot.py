"""torchsnapshot: ``Snapshot.take`` and ``Snapshot.async_take``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchsnapshot import Snapshot, StateDict

from benchmarks.checkpoints.contestant import Contestant, FreshNames
from benchmarks.checkpoints.states import State
from benchmarks.harness.disk import fsync_tree


def contestants(directory: Path) -> list[Contestant]:
    names = FreshNames(directory)

    def save(state: State) -> Path:
        path = names.next("torchsnapshot")
        Snapshot.take(str(path), _stateful(state))
        fsync_tree(path)
        return path

    def start(state: State) -> Callable[[], Path]:
        path = names.next("torchsnapshot-async")
        pending = Snapshot.async_take(str(path), _stateful(state))

        def wait() -> Path:
            pending.wait()
            fsync_tree(path)
            return path

        return wait

    def restore(path: Path, into: State) -> None:
        Snapshot(str(path)).restore(_stateful(into))

    return [
        Contestant("torchsnapshot", save=save, restore=restore),
        Contestant("torchsnapshot async", start=start, restore=restore),
    ]


def _stateful(state: State) -> dict[str, StateDict]:
    return {group: StateDict(**tensors) for group, tensors in state.tree.items()}
