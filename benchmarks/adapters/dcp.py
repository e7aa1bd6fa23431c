"""torch.distributed.checkpoint in a process group of one: ``dcp.save`` and ``dcp.async_save``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.adapters.host import Finish, Host, Way, Ways
from benchmarks.adapters.training import Training

State = dict[str, Any]  # Any: what get_state_dict returns


@contextmanager
def open_ways(training: Training, directory: Path, *, is_async: bool) -> Iterator[Ways]:
    from torch import distributed
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter

    numbers = count(1)
    rendezvous = directory / f"rendezvous-{is_async}"
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)

    def state() -> State:
        model, optimizer = get_state_dict(training.model, training.optimizer)
        return {"model": model, "optimizer": optimizer}

    def put_back(loaded: State) -> None:
        set_state_dict(
            training.model,
            training.optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )

    def save(path: Path, **options: Any) -> Finish:
        if not is_async:
            state_dict_saver.save(state(), **options)
            return lambda: path
        response = state_dict_saver.async_save(state(), **options)

        def finish() -> Path:
            (response if isinstance(response, Future) else response.upload_completion).result()
            return path

        return finish

    def start_own() -> Finish:
        path = directory / f"dcp-{next(numbers)}"
        return save(path, checkpoint_id=path)

    def start_ours() -> Finish:
        name = f"archive-{next(numbers)}"
        return save(directory / f"{name}.tar", storage_writer=ArchiveWriter(directory, name=name))

    def restore(path: Path, load: Callable[[State, Path], None]) -> None:
        into = state()
        load(into, path)
        put_back(into)

    def load_own(into: State, path: Path) -> None:
        state_dict_loader.load(into, checkpoint_id=path)

    def load_ours(into: State, path: Path) -> None:
        state_dict_loader.load(into, storage_reader=ArchiveReader(directory, name=path.stem))

    try:
        yield Ways(
            own=Way(start_own, partial(restore, load=load_own)),
            ours=Way(start_ours, partial(restore, load=load_ours)),
        )
    finally:
        distributed.destroy_process_group()
        rendezvous.unlink(missing_ok=True)


SYNC = Host("dcp", "dcp.save", "ArchiveWriter", package="torch", open=partial(open_ways, is_async=False))
ASYNC = Host("dcp-async", "dcp.async_save", "ArchiveWriter", package="torch", open=partial(open_ways, is_async=True))
