"""torchtitan's checkpoint managers in a process group of one: its own, by default and in the background, and ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.adapters.host import Finish, Host, Way, Ways
from benchmarks.adapters.training import Training


class NamedOptimizer:
    """The optimizer's state by names of parameters, as torchtitan's container of optimizers gives and takes it."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def state_dict(self) -> dict[str, Any]:
        states = self._training.optimizer.state
        named = self._training.model.named_parameters()
        return {f"state.{name}.{key}": value for name, one in named for key, value in states[one].items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Both ways fill the tensors that ``state_dict`` gave."""


class NoState:
    """Schedulers, a loader and a trainer that have nothing to save."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@contextmanager
def open_ways(training: Training, directory: Path, *, own_mode: str) -> Iterator[Ways]:
    from torch import distributed
    from torchtitan.components.checkpointer import CheckpointManager

    from chockstone.integrations.torchtitan import ArchiveCheckpointManager

    numbers = count(1)
    rendezvous = directory / "rendezvous"
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)

    def open_manager(kind: Any, folder: str, mode: str) -> Any:
        config = kind.Config(enable=True, interval=1, folder=folder, keep_latest_k=0, async_mode=mode)
        return config.build(
            dataloader=NoState(),
            model_parts=[training.model],
            optimizers=NamedOptimizer(training),
            lr_schedulers=NoState(),
            states={"train_state": NoState()},
            sd_adapter=None,
            base_folder=str(directory),
        )

    def way(manager: Any, folder: str) -> Way:
        def start() -> Finish:
            step = next(numbers)
            manager.save(step)

            def finish() -> Path:
                manager.maybe_wait_for_saving()
                return directory / folder / f"step-{step}"

            return finish

        def restore(path: Path) -> None:
            assert manager.load(int(path.name.removeprefix("step-")))

        return Way(start, restore)

    own = open_manager(CheckpointManager, "own", own_mode)
    ours = open_manager(ArchiveCheckpointManager, "ours", "async")  # its default
    try:
        yield Ways(own=way(own, "own"), ours=way(ours, "ours"))
    finally:
        own.close()
        ours.close()
        distributed.destroy_process_group()
        rendezvous.unlink(missing_ok=True)


_HOST = partial(Host, ours="ArchiveCheckpointManager", package="torchtitan")
SYNC = _HOST("torchtitan", "CheckpointManager", open=partial(open_ways, own_mode="disabled"))
ASYNC = _HOST("torchtitan-async", 'CheckpointManager, async_mode="async"', open=partial(open_ways, own_mode="async"))
