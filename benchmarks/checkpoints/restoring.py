"""Restoring: seconds from a file on the disk to the tensors that were there already.

Before every restore the files are dropped from the page cache, so everyone reads from the disk. Ours verifies
every digest on the way; no peer verifies anything.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from benchmarks.checkpoints.accounting import traffic
from benchmarks.checkpoints.contestant import Contestant, FreshNames, Save
from benchmarks.checkpoints.limits import VARIANTS, Variant
from benchmarks.checkpoints.setup import Prepared, Setup, keep_best, variant_name
from benchmarks.harness.context import Context
from benchmarks.harness.disk import evict, remove
from benchmarks.harness.rounds import Metrics, Rows, Series, Turn

LIMIT = "limit: O_DIRECT read"
COLD_SHARE = 0.85  # below this share of the state's bytes, a restore was served from memory (orbax compresses)


def measure_restoring(context: Context, setup: Setup, *, state: str) -> Rows:
    """Keeps one checkpoint of every contestant on the disk while it runs; removes them all."""
    prepared = setup.prepare(context, state)
    contestants = {
        contestant.name: contestant
        for contestant in prepared.contestants
        if contestant.save is not None and contestant.restore is not None
    }
    rows: Rows = {}
    paths: dict[Save, Path] = {}
    limit_file = FreshNames(prepared.directory).next("limit-read")
    try:
        prepared.limits.write(limit_file, VARIANTS[0])
        for contestant in list(contestants.values()):
            context.say(f"writing for {contestant.name}")
            try:
                _save_once(contestant, paths, prepared)
            except Exception as error:  # recorded: reported as "not run" with its reason
                rows[contestant.name] = Series(failure=f"{type(error).__name__}: {error}")
                del contestants[contestant.name]

        turns = {variant_name(LIMIT, variant): _reading(limit_file, variant, prepared) for variant in VARIANTS}
        turns |= {name: _restoring(contestant, paths, prepared) for name, contestant in contestants.items()}
        zero(prepared)

        def check(name: str) -> str | None:
            if name not in contestants or not contestants[name].in_place:
                return None
            restored = prepared.target.equals(prepared.state)
            zero(prepared)
            return None if restored else "the restored tensors differ from the saved ones"

        rows |= context.run_rounds(turns, repeats=prepared.repeats, memory=prepared.memory, check=check)
    finally:
        for path in (limit_file, *paths.values()):
            remove(path)
    for one in rows.values():
        read_bytes = one.median("read_bytes")
        if read_bytes is not None and read_bytes < COLD_SHARE * prepared.state.size_bytes:
            one.note = f"only {read_bytes / 1e6:.0f} MB came from the disk"
    return prepared.with_absent(keep_best(rows, LIMIT))


def zero(prepared: Prepared) -> None:
    for tensor in prepared.target.flat().values():
        tensor.zero_()


def _save_once(contestant: Contestant, paths: dict[Save, Path], prepared: Prepared) -> None:
    """Contestants that differ only in how they read share one file."""
    assert contestant.save is not None
    if contestant.save not in paths:
        paths[contestant.save] = contestant.save(prepared.state)


def _restoring(contestant: Contestant, paths: dict[Save, Path], prepared: Prepared) -> Turn:
    save, restore = contestant.save, contestant.restore
    assert save is not None
    assert restore is not None

    def turn() -> Metrics:
        evict(paths[save])
        before = traffic()
        started = perf_counter()
        restore(paths[save], prepared.target)
        seconds = perf_counter() - started
        return {"seconds": seconds, "read_bytes": traffic().since(before).read_bytes}

    return turn


def _reading(path: Path, variant: Variant, prepared: Prepared) -> Turn:
    def turn() -> Metrics:
        evict(path)
        started = perf_counter()
        prepared.limits.read(path, variant)
        return {"seconds": perf_counter() - started}

    return turn
