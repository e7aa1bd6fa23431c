"""One rank: a process of a torch.distributed group that reads commands from standard input, one JSON object a line.

Every rank of a group gets the same commands. The rank writes one line of JSON to standard output for each of them:
seconds, and what else was measured. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.checkpoints.states import Shapes, training_shapes
from benchmarks.distributed.bare_loop import BareLoop
from benchmarks.distributed.disk import make_room, part_of, read_part, write_part
from benchmarks.distributed.own_loop import OwnLoop
from benchmarks.harness.disk import fsync_tree
from chockstone.checkpoints import Checkpointer, Retention

COMMANDS = (
    *("make", "copy", "save", "load", "dcp_save", "dcp_load", "disk_write", "disk_read"),
    *("sums", "prepare", "train", "train_own", "close"),
)
GROUPS = ("model", "exp_avg", "exp_avg_sq")
Reply = dict[str, float]


class Rank:
    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._state: dict[str, dict[str, DTensor]] = {}
        self._copies: list[NDArray[np.float32]] = []
        self._checkpointers: dict[str, Checkpointer] = {}
        self._loop: BareLoop | None = None
        self._own: OwnLoop | None = None

    def make(self, shapes: str) -> Reply:
        """Weights and two moments, sharded along their first axis as FSDP2 does; this rank holds its parts only."""
        wanted = training_shapes(shapes)
        for seed, group in enumerate(GROUPS):
            torch.manual_seed(1000 * seed + distributed.get_rank())
            self._state[group] = _random_shards(wanted, self._mesh)
        return {"bytes": float(sum(4 * tensor.numel() for group in self._state.values() for tensor in group.values()))}

    def copy(self) -> Reply:
        """Copy into memory that is already touched: the least that a snapshot takes."""
        sources = [tensor.to_local().numpy().reshape(-1) for group in self._state.values() for tensor in group.values()]
        if not self._copies:
            self._copies = [np.copy(source) for source in sources]
        distributed.barrier()
        began = time.perf_counter()
        for target, source in zip(self._copies, sources, strict=True):
            np.copyto(target, source)
        return {"blocked": time.perf_counter() - began}

    def save(self, directory: str, step: int, threads: int) -> Reply:
        """Save with our library until durable. Training is blocked for a part of that. The older one is deleted."""
        checkpointer = self._checkpointer(directory)
        torch.set_num_threads(threads)
        distributed.barrier()
        saved = checkpointer.save(self._state, step=step).result()
        return {"seconds": saved.seconds, "blocked": saved.blocked_seconds}

    def load(self, directory: str) -> Reply:
        checkpointer = self._checkpointer(directory)
        self._spoil()
        distributed.barrier()
        began = time.perf_counter()
        checkpointer.restore(self._state)
        return {"seconds": time.perf_counter() - began} | self._sums()

    def dcp_save(self, directory: str) -> Reply:
        """With torch.distributed.checkpoint, each file synced, and their directory."""
        distributed.barrier()
        began = time.perf_counter()
        dcp.save(self._state, storage_writer=dcp.FileSystemWriter(directory, sync_files=True))
        if distributed.get_rank() == 0:
            fsync_tree(Path(directory))
        distributed.barrier()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "blocked": seconds}

    def dcp_load(self, directory: str) -> Reply:
        self._spoil()
        distributed.barrier()
        began = time.perf_counter()
        dcp.load(self._state, storage_reader=dcp.FileSystemReader(directory))
        return {"seconds": time.perf_counter() - began} | self._sums()

    def disk_write(self, path: str, size: int) -> Reply:
        file = Path(path)
        if distributed.get_rank() == 0:
            make_room(file, size)
        distributed.barrier()
        began = time.perf_counter()
        write_part(file, *part_of(size, distributed.get_rank(), distributed.get_world_size()))
        return {"seconds": time.perf_counter() - began}

    def disk_read(self, path: str) -> Reply:
        file = Path(path)
        distributed.barrier()
        began = time.perf_counter()
        read_part(file, *part_of(file.stat().st_size, distributed.get_rank(), distributed.get_world_size()))
        return {"seconds": time.perf_counter() - began}

    def sums(self) -> Reply:
        return self._sums()

    def prepare(self, directory: str, learning_rate: float) -> Reply:
        self._loop = BareLoop(Path(directory), self._mesh, learning_rate=learning_rate)
        self._own = OwnLoop(Path(directory), learning_rate=learning_rate)
        return {}

    def train(self, sequences: list[list[int]], steps: int) -> Reply:
        assert self._loop is not None, "prepare comes first"
        return self._loop.train(sequences, steps=steps)

    def train_own(self, body: str, steps: int) -> Reply:
        assert self._own is not None, "prepare comes first"
        return self._own.train(body, steps=steps)

    def close(self) -> Reply:
        for checkpointer in self._checkpointers.values():
            checkpointer.close()
        return {}

    def _checkpointer(self, directory: str) -> Checkpointer:
        if directory not in self._checkpointers:
            self._checkpointers[directory] = Checkpointer(directory, retention=Retention(keep_last=1))
        return self._checkpointers[directory]

    def _spoil(self) -> None:
        """Overwrite the state, so that what it has afterwards was loaded."""
        for group in self._state.values():
            for tensor in group.values():
                tensor.to_local().zero_()

    def _sums(self) -> Reply:
        """One number for each group, of this rank's bits."""
        return {
            group: float(
                sum(int(tensor.to_local().view(torch.int32).sum(dtype=torch.int64)) for tensor in tensors.values())
            )
            for group, tensors in self._state.items()
        }


def _random_shards(shapes: Shapes, mesh: DeviceMesh) -> dict[str, DTensor]:
    world, rank = distributed.get_world_size(), distributed.get_rank()
    made: dict[str, DTensor] = {}
    for name, shape in shapes.items():
        rows = -(-shape[0] // world)  # as torch.chunk cuts: the last ones may have fewer, or none
        mine = max(0, min(rows, shape[0] - rank * rows))
        local = torch.randn(mine, *shape[1:])
        stride = torch.empty(shape, device="meta").stride()
        made[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
        )
    return made


def main() -> None:
    rank, world_size, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    worker = Rank(init_device_mesh("cpu", (world_size,)))
    commands: dict[str, Callable[..., Reply]] = {name: getattr(worker, name) for name in COMMANDS}
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)  # Any: arguments of all kinds
        reply = commands[command.pop("do")](**command)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
