"""Restoring: seconds from a file on the disk to the tensors that were there already.

Before every restore the files are dropped from the page cache, so everyone reads from the disk. Ours verifies
every digest on the way; no peer verifies anything.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from benchmarks.checkpoints.accounting import traffic
from benchmarks.checkpoints.contestant import Contestant, FreshNames, Save
from benchmarks.checkpoints.durability import evict, remove
from benchmarks.checkpoints.limits import VARIANTS, Variant
from benchmarks.checkpoints.rounds import Action, Metrics, Series, run_rounds
from benchmarks.checkpoints.stage import Stage, keep_best, variant_name

LIMIT = "limit: O_DIRECT read"
COLD_SHARE = 0.85  # below this share of the state's bytes, a restore was served from memory (orbax compresses)


def measure_restoring(stage: Stage) -> dict[str, Series]:
    """Keeps one checkpoint of every contestant on the disk while it runs; removes them all."""
    in_the_race = {
        contestant.name: contestant
        for contestant in stage.contestants
        if contestant.save is not None and contestant.restore is not None
    }
    series: dict[str, Series] = {}
    paths: dict[Save, Path] = {}
    limit_file = FreshNames(stage.directory).next("limit-read")
    try:
        stage.limits.write(limit_file, VARIANTS[0])
        for contestant in list(in_the_race.values()):
            stage.say(f"writing for {contestant.name}")
            try:
                _save_once(contestant, paths, stage)
            except Exception as error:  # recorded: reported as "not run" with its reason
                series[contestant.name] = Series(failure=f"{type(error).__name__}: {error}")
                del in_the_race[contestant.name]

        actions = {variant_name(LIMIT, variant): _reading(limit_file, variant, stage) for variant in VARIANTS}
        actions |= {name: _restoring(contestant, paths, stage) for name, contestant in in_the_race.items()}
        zero(stage)

        def check(name: str) -> str | None:
            if name not in in_the_race or not in_the_race[name].in_place:
                return None
            restored = stage.target.equals(stage.state)
            zero(stage)
            return None if restored else "the restored tensors differ from the saved ones"

        series |= run_rounds(actions, repeats=stage.repeats, memory=stage.memory, say=stage.say, check=check)
    finally:
        for path in (limit_file, *paths.values()):
            remove(path)
    for one in series.values():
        read_bytes = one.median("read_bytes")
        if read_bytes is not None and read_bytes < COLD_SHARE * stage.state.size_bytes:
            one.note = f"only {read_bytes / 1e6:.0f} MB came from the disk"
    return stage.with_absent(keep_best(series, LIMIT))


def zero(stage: Stage) -> None:
    for tensor in stage.target.flat().values():
        tensor.zero_()


def _save_once(contestant: Contestant, paths: dict[Save, Path], stage: Stage) -> None:
    """Contestants that differ only in how they read share one file."""
    assert contestant.save is not None
    if contestant.save not in paths:
        paths[contestant.save] = contestant.save(stage.state)


def _restoring(contestant: Contestant, paths: dict[Save, Path], stage: Stage) -> Action:
    save, restore = contestant.save, contestant.restore
    assert save is not None
    assert restore is not None

    def action() -> Metrics:
        evict(paths[save])
        before = traffic()
        started = perf_counter()
        restore(paths[save], stage.target)
        seconds = perf_counter() - started
        return {"seconds": seconds, "read_bytes": traffic().since(before).read_bytes}

    return action


def _reading(path: Path, variant: Variant, stage: Stage) -> Action:
    def action() -> Metrics:
        evict(path)
        started = perf_counter()
        stage.limits.read(path, variant)
        return {"seconds": perf_counter() - started}

    return action
