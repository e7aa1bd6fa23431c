"""Archiving: one state of 1.5 GB saved to durable and loaded again, by one rank and by two, and by DCP.

How long a rank is blocked is compared between ranks that have one core each: one rank alone, and two ranks.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from benchmarks.distributed.rank import GROUPS
from benchmarks.distributed.scale import Scale
from benchmarks.distributed.world import World, slowest
from benchmarks.harness.context import Context
from benchmarks.harness.disk import evict, remove
from benchmarks.harness.free_memory import free_memory
from benchmarks.harness.rounds import Metrics, Rows, Turn

ONE = "ours, one rank on both cores"
ALIKE = "ours, one rank on one core"
TWO = "ours, two ranks, a core each"
DCP = "torch DCP, two ranks, a core each"
BARE_ONE = "a bare copy in memory, one core"
BARE_TWO = "a bare copy in memory, half of it on each of two cores"
DISK = "the bare disk: as many bytes, two ranks, and nothing else"
OURS = {ONE, ALIKE, TWO}
CORES = 2  # that a contestant has, whatever its number of ranks; ``ALIKE`` has one


def measure_saving(context: Context, scale: Scale) -> Rows:
    with World(1, context.directory) as alone, World(2, context.directory) as both:
        size = _make(context, scale, alone, both)
        contestants = {
            ONE: _saves(alone, context.directory / "one", threads=CORES),
            ALIKE: _saves(alone, context.directory / "alike", threads=1),
            TWO: _saves(both, context.directory / "two", threads=1),
            DCP: _dcp_saves(both, context.directory / "dcp"),
            DISK: _disk_writes(both, context.directory / "disk", size),
            BARE_ONE: _copies(alone),
            BARE_TWO: _copies(both),
        }
        rows = context.run_rounds(contestants, repeats=scale.saves, memory=free_memory(context.temperature, size))
        for world in (alone, both):
            world.call("close")
    return rows


def measure_loading(context: Context, scale: Scale) -> Rows:
    """Each loads from the disk, not from the page cache, and must get back what was saved."""
    with World(1, context.directory) as alone, World(2, context.directory) as both:
        size = _make(context, scale, alone, both)
        one, two, dcp = (context.directory / name for name in ("one", "two", "dcp"))
        _saves(alone, one, threads=CORES)()
        _saves(both, two, threads=1)()
        both.call("dcp_save", directory=str(dcp))
        contestants = {
            ONE: _loads(alone, "load", one),
            TWO: _loads(both, "load", two),
            DCP: _loads(both, "dcp_load", dcp),
            DISK: _disk_reads(both, two),
        }
        rows = context.run_rounds(contestants, repeats=scale.loads, memory=free_memory(context.temperature, size))
        for world in (alone, both):
            world.call("close")
    return rows


def _make(context: Context, scale: Scale, *worlds: World) -> int:
    """Make the state in each world; returns its size in bytes."""
    context.say("making the state")
    [size] = {int(world.call("make", shapes=scale.shapes)[0]["bytes"]) for world in worlds}
    context.describe(f"weights and Adam moments, {size / 1e6:,.0f} MB")
    return size


def _saves(world: World, directory: Path, *, threads: int) -> Turn:
    steps = count(1)

    def turn() -> Metrics:
        replies = world.call("save", directory=str(directory), step=next(steps), threads=threads)
        return {metric: slowest(replies, metric) for metric in ("seconds", "blocked")}

    return turn


def _copies(world: World) -> Turn:
    return lambda: {"blocked": slowest(world.call("copy"), "blocked")}


def _dcp_saves(world: World, directory: Path) -> Turn:
    numbers = count(1)

    def turn() -> Metrics:
        place = directory / str(next(numbers))
        replies = world.call("dcp_save", directory=str(place))
        remove(place)
        return {metric: slowest(replies, metric) for metric in ("seconds", "blocked")}

    return turn


def _disk_writes(world: World, path: Path, size: int) -> Turn:
    def turn() -> Metrics:
        replies = world.call("disk_write", path=str(path), size=size)
        remove(path)
        return {"seconds": slowest(replies, "seconds")}

    return turn


def _disk_reads(world: World, directory: Path) -> Turn:
    [archive] = directory.glob("*.tar")

    def turn() -> Metrics:
        evict(directory)
        return {"seconds": slowest(world.call("disk_read", path=str(archive)), "seconds")}

    return turn


def _loads(world: World, do: str, directory: Path) -> Turn:
    wanted = world.call("sums")

    def turn() -> Metrics:
        evict(directory)
        replies = world.call(do, directory=str(directory))
        if [[each[group] for group in GROUPS] for each in replies] != [
            [each[group] for group in GROUPS] for each in wanted
        ]:
            raise RuntimeError(f"{do}: what was loaded is not what was saved")
        return {"seconds": slowest(replies, "seconds")}

    return turn
