"""Volume: bytes a save sends to the disk, and bytes it leaves there, against the size of the state."""

from __future__ import annotations

from benchmarks.checkpoints import ours
from benchmarks.checkpoints.accounting import traffic
from benchmarks.checkpoints.durability import remove, size_of
from benchmarks.checkpoints.rounds import Series
from benchmarks.checkpoints.stage import Stage

NAMES = (ours.NAME, "safetensors", "directory, then tar")


def measure_volume(stage: Stage) -> dict[str, Series]:
    """One save each: these numbers do not vary from run to run."""
    series: dict[str, Series] = {}
    for contestant in stage.contestants:
        if contestant.name not in NAMES or contestant.save is None:
            continue
        stage.say(f"counting bytes: {contestant.name}")
        before = traffic()
        path = contestant.save(stage.state)
        written = traffic().since(before).write_bytes
        counted = Series()
        counted.add({"written_bytes": written, "file_bytes": size_of(path)})
        series[contestant.name] = counted
        remove(path)
    relevant = (absence for absence in stage.absent if absence.name in NAMES)
    return series | {absence.name: Series(failure=absence.reason) for absence in relevant}
