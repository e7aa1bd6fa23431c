"""Volume: bytes a save sends to the disk, and bytes it leaves there, against the size of the state."""

from __future__ import annotations

from benchmarks.checkpoints import ours
from benchmarks.checkpoints.accounting import traffic
from benchmarks.checkpoints.setup import Setup
from benchmarks.harness.context import Context
from benchmarks.harness.disk import remove, size_of
from benchmarks.harness.rounds import Rows, Series

NAMES = (ours.NAME, "safetensors", "directory, then tar")


def measure_volume(context: Context, setup: Setup, *, state: str) -> Rows:
    """One save each: these numbers do not vary from run to run."""
    prepared = setup.prepare(context, state)
    rows: Rows = {}
    for contestant in prepared.contestants:
        if contestant.name not in NAMES or contestant.save is None:
            continue
        context.say(f"counting bytes: {contestant.name}")
        before = traffic()
        path = contestant.save(prepared.state)
        written = traffic().since(before).write_bytes
        beyond_percent = 100.0 * (written / prepared.state.size_bytes - 1.0)
        rows[contestant.name] = Series()
        rows[contestant.name].add(
            {"written_bytes": written, "beyond_percent": beyond_percent, "file_bytes": size_of(path)}
        )
        remove(path)
    relevant = (absence for absence in prepared.absent if absence.name in NAMES)
    return rows | {absence.name: Series(failure=absence.reason) for absence in relevant}
