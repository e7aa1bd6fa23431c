"""Archiving: one state of 1.5 GB saved to durable and loaded again, by one rank and by two, and by DCP.

How long a rank is blocked is asked of ranks that are alike: two have a core each, one has one core.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from benchmarks.checkpoints.durability import evict, remove
from benchmarks.checkpoints.rounds import Metrics, Series
from benchmarks.distributed.rank import GROUPS
from benchmarks.distributed.stage import Stage
from benchmarks.distributed.world import World, slowest

ONE = "ours, one rank on both cores"
ALIKE = "ours, one rank on one core"
TWO = "ours, two ranks, a core each"
DCP = "torch DCP, two ranks, a core each"
BARE_ONE = "a bare copy in memory, one core"
BARE_TWO = "a bare copy in memory, half of it on each of two cores"
DISK = "the bare disk: as many bytes, two ranks, and nothing else"
OURS = {ONE, ALIKE, TWO}
CORES = 2  # that all contestants have between them, but for the one that is as a rank of two


def measure_saving(stage: Stage) -> dict[str, Series]:
    with World(1, stage.directory) as alone, World(2, stage.directory) as both:
        size = _make(stage, "save", alone, both)
        actions = {
            ONE: _saves(alone, stage.directory / "one", threads=CORES),
            ALIKE: _saves(alone, stage.directory / "alike", threads=1),
            TWO: _saves(both, stage.directory / "two", threads=1),
            DCP: _dcp_saves(both, stage.directory / "dcp"),
            DISK: _disk_writes(both, stage.directory / "disk", size),
            BARE_ONE: _copies(alone),
            BARE_TWO: _copies(both),
        }
        rows = stage.run_rounds(actions, repeats=stage.scale.saves, state_bytes=size)
        for world in (alone, both):
            world.tell("close")
    return rows


def measure_loading(stage: Stage) -> dict[str, Series]:
    """Each from the disk, not from memory, and what came back is what was saved."""
    with World(1, stage.directory) as alone, World(2, stage.directory) as both:
        size = _make(stage, "load", alone, both)
        one, two, dcp = (stage.directory / name for name in ("one", "two", "dcp"))
        _saves(alone, one, threads=CORES)()
        _saves(both, two, threads=1)()
        both.tell("dcp_save", directory=str(dcp))
        actions = {
            ONE: _loads(alone, "load", one),
            TWO: _loads(both, "load", two),
            DCP: _loads(both, "dcp_load", dcp),
            DISK: _disk_reads(both, two),
        }
        rows = stage.run_rounds(actions, repeats=stage.scale.loads, state_bytes=size)
        for world in (alone, both):
            world.tell("close")
    return rows


def _make(stage: Stage, measure: str, *worlds: World) -> int:
    """A state in each world; how many bytes each."""
    stage.say(f"{measure}: making the state")
    [size] = {int(world.tell("make", shapes=stage.scale.shapes)[0]["bytes"]) for world in worlds}
    stage.titles[measure] = f"weights and Adam moments, {size / 1e6:,.0f} MB"
    return size


def _saves(world: World, directory: Path, *, threads: int) -> Callable[[], Metrics]:
    steps = count(1)

    def turn() -> Metrics:
        said = world.tell("save", directory=str(directory), step=next(steps), threads=threads)
        return {metric: slowest(said, metric) for metric in ("seconds", "blocked")}

    return turn


def _copies(world: World) -> Callable[[], Metrics]:
    return lambda: {"blocked": slowest(world.tell("copy"), "blocked")}


def _dcp_saves(world: World, directory: Path) -> Callable[[], Metrics]:
    numbers = count(1)

    def turn() -> Metrics:
        place = directory / str(next(numbers))
        said = world.tell("dcp_save", directory=str(place))
        remove(place)
        return {metric: slowest(said, metric) for metric in ("seconds", "blocked")}

    return turn


def _disk_writes(world: World, path: Path, size: int) -> Callable[[], Metrics]:
    def turn() -> Metrics:
        said = world.tell("disk_write", path=str(path), size=size)
        remove(path)
        return {"seconds": slowest(said, "seconds")}

    return turn


def _disk_reads(world: World, directory: Path) -> Callable[[], Metrics]:
    [archive] = directory.glob("*.tar")

    def turn() -> Metrics:
        evict(directory)
        return {"seconds": slowest(world.tell("disk_read", path=str(archive)), "seconds")}

    return turn


def _loads(world: World, do: str, directory: Path) -> Callable[[], Metrics]:
    wanted = world.tell("sums")

    def turn() -> Metrics:
        evict(directory)
        said = world.tell(do, directory=str(directory))
        if [[each[group] for group in GROUPS] for each in said] != [
            [each[group] for group in GROUPS] for each in wanted
        ]:
            raise RuntimeError(f"{do}: what was loaded is not what was saved")
        return {"seconds": slowest(said, "seconds")}

    return turn
