"""What the ranks of these tests do, each in a process of its own. A job gets its rank first."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from chockstone.checkpoints import Checkpointer, Pieces, RestoreReceipt
from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, RanksLost
from chockstone.checkpoints.stores.file_store import FileStore

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def open_checkpointer(place: Path, **options: Any) -> Checkpointer:
    return Checkpointer(place, now=lambda: NOON, **{"rank_timeout_seconds": 30.0, **options})


def whole_state() -> dict[str, Any]:
    """Of every kind, and large enough for several blocks and for tensors that are divided among all who have them."""
    made = torch.Generator().manual_seed(7)
    wide = torch.randn(300, 1100, generator=made)
    few, none = torch.randn(2, 3, generator=made), torch.empty(0, 4)
    return {
        "model": {
            "wide": wide,
            "tied": wide,
            "uneven": torch.randn(7, 130_001, generator=made).to(torch.bfloat16),
            "columns": torch.randn(600, 1000, generator=made),
            "deep": torch.randn(5, 6, 9, generator=made),
            "few": few,  # fewer rows than ranks
            "few_tied": few,
            "left": torch.randn(2, 3, generator=made),  # in the same memory as what follows
            "right": torch.randn(2, 3, generator=made),
            "one": torch.tensor(3.5),
            "far": torch.tensor(4.5),  # on the last rank alone
            "none": none,
            "none_tied": none,
            "complex": torch.randn(9, 2, dtype=torch.complex128, generator=made),
            "same": torch.randn(3000, 500, generator=made),  # on all ranks
        },
        "flat": {"moments": torch.randn(1_000_003, generator=made)},
        "numbers": {"array": np.arange(12, dtype=np.int32).reshape(3, 4), "step": 4, "lr": 0.5, "text": "grüße"},
    }


PLACED = {  # on a mesh of one dimension, and of two
    "wide": ([Shard(0)], [Shard(0), Replicate()]),
    "uneven": ([Shard(0)], [Replicate(), Shard(0)]),
    "columns": ([Shard(1)], [Shard(0), Shard(1)]),
    "deep": ([Shard(1)], [Shard(2), Shard(1)]),
    "few": ([Shard(0)], [Shard(0), Shard(0)]),
    "left": ([Shard(0)], [Shard(0), Shard(0)]),
    "right": ([Shard(0)], [Shard(0), Shard(0)]),
    "one": ([Replicate()], [Replicate(), Replicate()]),
    "none": ([Shard(0)], [Shard(1), Shard(0)]),
    "complex": ([Shard(0)], [Shard(0), Replicate()]),
}


def make_mesh(dimensions: int) -> DeviceMesh:
    world_size = distributed.get_world_size()
    return init_device_mesh("cpu", (world_size,) if dimensions == 1 else (2, world_size // 2))


def place(tensor: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def side_by_side(tensors: list[DTensor]) -> list[DTensor]:
    """The same, in one stretch of memory with something behind them."""
    locals_ = [tensor.to_local() for tensor in tensors]
    memory = torch.cat([*(local.reshape(-1) for local in locals_), torch.zeros(1000)])
    views = memory.split([*(local.numel() for local in locals_), 1000])
    return [
        DTensor.from_local(
            view.view(local.shape), one.device_mesh, one.placements, shape=one.shape, stride=one.stride()
        )
        for one, local, view in zip(tensors, locals_, views, strict=False)
    ]


def pieces_of(tensor: torch.Tensor) -> Pieces:
    """Two ranges for each rank, the second one turned round."""
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    flat, middle = tensor.reshape(-1), tensor.numel() // 3
    bounds = [middle * number // world_size for number in range(world_size + 1)]
    rest = [middle + (flat.numel() - middle) * number // world_size for number in range(world_size + 1)]
    other = world_size - 1 - rank
    ranges = [(bounds[rank], bounds[rank + 1]), (rest[other], rest[other + 1])]
    return Pieces(tuple(tensor.shape), tensor.dtype, [(a, flat[a:b].clone()) for a, b in ranges])


def divided_state(whole: Mapping[str, Any], dimensions: int = 1) -> dict[str, Any]:
    """What this rank has of ``whole``; as it is, where there is only one."""
    if not distributed.is_initialized():
        return dict(whole)
    mesh = make_mesh(dimensions)
    model = {
        name: place(tensor, mesh, PLACED[name][dimensions - 1])
        for name, tensor in whole["model"].items()
        if name in PLACED
    }
    model["left"], model["right"] = side_by_side([model["left"], model["right"]])
    model["far"] = place(whole["model"]["far"], DeviceMesh("cpu", [distributed.get_world_size() - 1]), [Replicate()])
    model["tied"], model["none_tied"] = model["wide"], model["none"]
    model["few_tied"] = model["few"].detach()  # as the state of a module has it
    model["same"] = whole["model"]["same"].clone()
    ordered = {name: model[name] for name in whole["model"]}
    return {**whole, "model": ordered, "flat": {"moments": pieces_of(whole["flat"]["moments"])}}


def zeroed(state: Any) -> Any:
    """The same structure with nothing in it, to restore into."""
    if isinstance(state, dict):
        return {key: zeroed(value) for key, value in state.items()}
    if isinstance(state, Pieces):
        return Pieces(state.shape, state.dtype, [(first, torch.zeros_like(piece)) for first, piece in state.pieces])
    if isinstance(state, torch.Tensor | np.ndarray):
        return torch.zeros_like(state) if isinstance(state, torch.Tensor) else np.zeros_like(state)
    return None


def is_same(found: Any, wanted: Any) -> bool:
    """Bit by bit."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(is_same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, Pieces):
        pairs = zip(found.pieces, wanted.pieces, strict=True)
        return all(a == b and is_same(one, other) for (a, one), (b, other) in pairs)
    if isinstance(wanted, DTensor):
        if distributed.get_rank() not in wanted.device_mesh.mesh:
            return True  # what torch has here of a tensor that is elsewhere means nothing
        return is_same(found.to_local(), wanted.to_local())
    if isinstance(wanted, np.ndarray):
        return found.tobytes() == wanted.tobytes() and found.dtype == wanted.dtype
    if isinstance(wanted, torch.Tensor):
        raw = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (found, wanted)]
        return found.shape == wanted.shape and found.dtype == wanted.dtype and torch.equal(*raw)
    return bool(found == wanted)


class InParts(FileStore):
    """As a store of which one process writes whole parts, that do not begin where blocks do."""

    def unit_bytes(self, size: int) -> int:
        return 5 * 1024**2 + 8192


def save_in_parts(rank: int, where: Path) -> None:
    with Checkpointer(InParts(where), now=lambda: NOON) as checkpointer:
        checkpointer.save(divided_state(whole_state()), step=1).result()


def save(rank: int, where: Path, dimensions: int = 1, **options: Any) -> tuple[Any, ...]:
    with open_checkpointer(where) as checkpointer:
        saved = checkpointer.save(divided_state(whole_state(), dimensions), step=1, **options).result()
    return saved.name, saved.size_bytes, saved.tensor_bytes


def save_async(rank: int, where: Path) -> bool:
    async def both() -> bool:
        state = divided_state(whole_state())
        into = zeroed(state)
        async with open_checkpointer(where) as checkpointer:
            await (await checkpointer.save_async(state, step=1))
            await checkpointer.restore_async(into)
        return is_same(into, state)

    return asyncio.run(both())


def save_slowly(rank: int, where: Path) -> bool:
    """At a pace that would take hours; only rank 0 asks for the end of it."""
    with open_checkpointer(where, bytes_per_second=1000.0) as checkpointer:
        handle = checkpointer.save({"rows": place(torch.zeros(8, 1024**2 // 4), make_mesh(1), [Shard(0)])}, step=1)
        if rank == 0:
            handle.result()
        while not handle.done():
            time.sleep(0.01)
        return handle.exception() is None


def save_and_part(rank: int, where: Path) -> str:
    """The world ends while the save is on its way, as at the end of a program that does not wait."""
    checkpointer = open_checkpointer(where, bytes_per_second=1000.0)
    handle = checkpointer.save({"rows": place(torch.zeros(8, 1024), make_mesh(1), [Shard(0)])}, step=1)
    distributed.destroy_process_group()
    checkpointer.close()
    return ending(handle.exception())


def close_twice(rank: int, where: Path) -> bool:
    """Whether the world of the training still works after that."""
    checkpointer = open_checkpointer(where)
    checkpointer.save(divided_state(whole_state()), step=1).result()
    checkpointer.close()
    checkpointer.close()
    if not distributed.is_initialized():
        return False
    distributed.barrier()
    return True


def save_newer(rank: int, where: Path) -> None:
    with open_checkpointer(where) as checkpointer:
        checkpointer.save(divided_state(whole_state()), step=2).result()


def restore_and_save_newer(rank: int, where: Path) -> str:
    """Restore what is good, then come to step 2 again."""
    into = zeroed(divided_state(whole_state()))
    with open_checkpointer(where) as checkpointer:
        receipt = checkpointer.restore(into)
        saved = checkpointer.save(into, step=2).result()
    return f"restored={receipt.name} saved={saved.name}"


def save_rows(rank: int, where: Path) -> tuple[int, int, int, int]:
    """Bytes copied and written by this rank, and how many blocks it read again of how many."""
    rows = place(torch.randn(20, 1024**2 // 4), make_mesh(1), [Shard(0)])
    with open_checkpointer(where) as checkpointer:
        handle = checkpointer.save({"rows": rows}, step=1)
        handle.result()
        receipt = checkpointer.restore({"rows": torch.zeros_like(rows)})
        snapshotter = checkpointer._buffers.ticket().result()
        return snapshotter._copy_plan.size, handle.progress.bytes_done, receipt.blocks_verified, receipt.blocks


def restore(rank: int, where: Path, dimensions: int = 1) -> tuple[bool, int]:
    """Whether all came back, and of which step."""
    wanted = divided_state(whole_state(), dimensions)
    into = zeroed(wanted)
    with open_checkpointer(where) as checkpointer:
        receipt = checkpointer.restore(into)
    return is_same(into, wanted), receipt.step or 0


def restore_nothing(rank: int, where: Path) -> RestoreReceipt | None:
    with open_checkpointer(where) as checkpointer:
        return checkpointer.restore({"rows": place(torch.ones(8, 1024), make_mesh(1), [Shard(0)])})


def restore_missing(rank: int, where: Path) -> str:
    try:
        restore_nothing(rank, where)
    except CheckpointMissing as error:
        return str(error)
    return "nothing was raised"


def restore_slowly(rank: int, where: Path) -> bool:
    """Rank 1 takes longer to read than the others would wait for one that says nothing."""
    rows = place(torch.ones(8, 1024), make_mesh(1), [Shard(0)])
    into = {"rows": torch.zeros_like(rows)}
    with open_checkpointer(where, rank_timeout_seconds=1.0) as checkpointer:
        checkpointer.save({"rows": rows}, step=1).result()
        checkpointer.restore(into, on_bytes=lambda _: time.sleep(2.2 if rank == 1 else 0.0))
    return is_same(into["rows"], rows)


def restore_and_die(rank: int, where: Path) -> str:
    """Rank 1 dies as it reads."""
    rows = place(torch.ones(8, 1024), make_mesh(1), [Shard(0)])
    checkpointer = open_checkpointer(where)
    checkpointer.save({"rows": rows}, step=1).result()
    try:
        checkpointer.restore({"rows": rows}, on_bytes=lambda _: os.kill(os.getpid(), signal.SIGKILL) if rank else None)
    except RanksLost as error:
        checkpointer.close()
        return str(error)
    return "restored without the others"


def ending(error: BaseException | None) -> str:
    return "well" if error is None else f"{type(error).__name__}: {error}"


def save_badly(rank: int, where: Path, what: str) -> list[str]:
    """Three saves of which the second goes wrong on one rank or on all; how each ended."""
    ends = []
    with open_checkpointer(where) as checkpointer:
        for step in (1, 2, 3):
            state = divided_state(whole_state())
            if step == 2:
                spoil(state, what, rank)
            try:
                named = {"name": f"step-{step:08d}"} if what == "step" else {}
                ahead = 10 if what in ("name", "step") and (rank, step) == (1, 2) else 0
                handle = checkpointer.save(state, step=step + ahead, **named)
                if what == "abandon" and (rank, step) == (1, 2):
                    handle.abandon()
            except CheckpointError as error:
                ends.append(f"at once {ending(error)}")
            else:
                ends.append(ending(handle.exception()))
    return ends


def spoil(state: dict[str, Any], what: str, rank: int) -> None:
    moments = state["flat"]["moments"]
    if what == "value" and rank == 1:
        state["numbers"] = {**state["numbers"], "lock": threading.Lock()}
    if what == "key" and rank == 1:
        state["model"] = {**state["model"], "extra": torch.zeros(3)}
    if what == "shape" and rank == 1:
        state["model"] = {**state["model"], "same": torch.zeros(2, 2)}
    if what == "hole" and rank == 1:
        state["flat"] = {"moments": Pieces(moments.shape, moments.dtype, moments.pieces[:1])}
    if what == "overlap":
        state["flat"] = {"moments": Pieces(moments.shape, moments.dtype, [(0, torch.zeros(1_000_003))])}
    if what == "both":  # as many elements as there are, but some twice
        state["flat"] = {"moments": Pieces((8,), torch.float32, [(rank * 2, torch.zeros(4))])}
    if what == "partial":
        local = torch.ones(4, 4)
        state["model"] = {**state["model"], "sum": DTensor.from_local(local, make_mesh(1), [Partial()])}


def save_alone(rank: int, where: Path) -> str:
    """Rank 0 saves for all, as it may with other libraries."""
    if rank == 0:
        try:
            open_checkpointer(where, rank_timeout_seconds=0.5).save({"a": torch.ones(3)}, step=1)
        except RanksLost as error:
            (where / "heard").touch()
            return str(error)
    while not (where / "heard").exists():
        time.sleep(0.01)
    return ""


def save_late(rank: int, where: Path) -> tuple[str, float]:
    """Rank 1 says nothing when it should."""
    checkpointer = open_checkpointer(where, rank_timeout_seconds=1.0)
    checkpointer.save({"a": torch.ones(3)}, step=1).result()
    if rank == 1:
        time.sleep(4.0)
        checkpointer.close()
        return "slept", 0.0
    started = time.monotonic()
    error = checkpointer.save({"a": torch.ones(3)}, step=2).exception()
    seconds = time.monotonic() - started
    again = checkpointer.save({"a": torch.ones(3)}, step=3).exception()
    assert isinstance(again, CheckpointError)
    checkpointer.close()
    return ending(error), seconds


def save_and_die(rank: int, where: Path) -> str:
    checkpointer = open_checkpointer(where)
    checkpointer.save({"a": torch.ones(3)}, step=1).result()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = checkpointer.save({"a": torch.ones(3)}, step=2).exception()
    try:
        checkpointer.restore({"a": torch.ones(3)})
    except RanksLost:
        checkpointer.close()
        return ending(error)
    return "restored without the others"


def save_in_a_row(rank: int, where: Path) -> list[float]:
    """Saves that overlap, of a state that goes on changing; the sums that each should have."""
    sums = []
    with open_checkpointer(where, buffers=2) as checkpointer:
        mesh = make_mesh(1)
        weights = place(torch.zeros(1000, 700), mesh, [Shard(0)])
        for step in range(1, 6):
            weights.add_(1.0)
            sums.append(float(step * 700_000))
            checkpointer.save({"weights": weights, "text": "x" * (1500 * step)}, step=step)
    return sums


def save_for_itself(rank: int, where: Path) -> list[str]:
    """Without the others."""
    with open_checkpointer(where / str(rank), ranks="off") as checkpointer:
        checkpointer.save({"rank": torch.full((3,), rank)}, step=1).result()
        into = {"rank": torch.zeros(3, dtype=torch.int64)}
        checkpointer.restore(into)
        try:
            checkpointer.save({"part": place(torch.zeros(8, 8), make_mesh(1), [Shard(0)])}, step=2).result()
        except CheckpointError as error:
            return [str(into["rank"].tolist()), ending(error)]
    return []


def restore_badly(rank: int, where: Path, what: str) -> str:
    """Rank 1 has a target that does not fit, or reads a block that is damaged."""
    into = zeroed(divided_state(whole_state()))
    if what == "shape" and rank == 1:
        into["model"]["same"] = torch.zeros(5)
    if what == "partial":
        into["model"]["same"] = DTensor.from_local(torch.zeros(3000, 500), make_mesh(1), [Partial()])
    with open_checkpointer(where) as checkpointer:
        try:
            receipt = checkpointer.restore(into)
        except CheckpointError as error:
            untouched = is_same(into["model"]["columns"], zeroed(into["model"]["columns"]))
            return f"{ending(error)} untouched={untouched}"
    good = is_same(into, divided_state(whole_state()))
    return f"{receipt.name} skipped={[skip.name for skip in receipt.skipped]} good={good}"
