"""A few processes that play the ranks of a training, kept from job to job: importing torch takes longer than a test."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_JOB_SECONDS = 120.0
_PRELOADED = [  # once for all: what a DTensor imports when it is first used takes seconds
    "torch",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "chockstone.checkpoints",
]
_DIED = (False, "died")
Job = Callable[..., Any]


class RankFailed(AssertionError):
    """A job raised where it should not have; the text is that rank's traceback."""


class RankPool:
    """Runs module-level functions on a world of ranks over gloo: ``job(rank, *arguments)``."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._ranks: list[tuple[Any, Connection]] = []

    def run(self, world_size: int, job: Job, *arguments: Any, is_turned: bool = False) -> list[Any]:
        """What the job returns on each rank. Raises RankFailed if it raises on one.

        ``is_turned``: the processes change places, so that each has another rank than it is used to.
        """
        outcomes = self.outcomes(world_size, job, *arguments, is_turned=is_turned)
        if failed := [f"rank {rank}: {said}" for rank, (is_good, said) in enumerate(outcomes) if not is_good]:
            raise RankFailed("\n".join(failed))
        return [said for _, said in outcomes]

    def outcomes(self, world_size: int, job: Job, *arguments: Any, is_turned: bool = False) -> list[tuple[bool, Any]]:
        """Per rank whether it went well, and what was returned or the traceback; of a dead one, "died"."""
        self._ranks = [(process, pipe) for process, pipe in self._ranks if process.is_alive()]
        while len(self._ranks) < world_size:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        used = self._ranks[:world_size][:: -1 if is_turned else 1]
        with tempfile.TemporaryDirectory() as place:
            for rank, (_, pipe) in enumerate(used):
                pipe.send((rank, world_size, str(Path(place) / "meeting"), job, arguments))
            outcomes = [_outcome(pipe) for _, pipe in used]
        for (process, _), outcome in zip(used, outcomes, strict=True):
            if outcome == _DIED:
                process.join()  # its pipe is closed before it counts as dead, and the next job must not go to it
        return outcomes

    def close(self) -> None:
        for process, pipe in self._ranks:
            pipe.close()
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()


def _outcome(pipe: Connection) -> tuple[bool, Any]:
    try:
        if pipe.poll(_JOB_SECONDS):
            outcome: tuple[bool, Any] = pipe.recv()
            return outcome
    except EOFError:
        return _DIED
    return False, f"said nothing for {_JOB_SECONDS} s"


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    while True:
        try:
            rank, world_size, meeting, job, arguments = pipe.recv()
        except EOFError:
            return
        try:
            with _world(rank, world_size, meeting):
                outcome = (True, job(rank, *arguments))
        except BaseException:  # sent to whoever asked
            outcome = (False, traceback.format_exc())
        pipe.send(outcome)


@contextmanager
def _world(rank: int, world_size: int, meeting: str) -> Iterator[None]:
    import torch.distributed as distributed

    if world_size == 1:
        yield
        return
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    try:
        yield
    finally:
        if distributed.is_initialized():  # a job may have been quicker
            distributed.destroy_process_group()


def open_pool() -> Iterator[RankPool]:
    """For a fixture."""
    pool = RankPool()
    try:
        yield pool
    finally:
        pool.close()
