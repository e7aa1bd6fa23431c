"""Runs all stages for many families, each in a process of its own with a limit of memory and time."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

_PRELOADED: Final = ["torch", "transformers", "peft", "benchmarks.families.stages", "benchmarks.families.ranks"]
_MEMORY_BYTES: Final = 8 << 30
_SECONDS: Final = 240.0
_RANKS: Final = 2


@dataclass(frozen=True, slots=True)
class FamilyRow:
    family: str
    stages: dict[str, str]  # "ok", or what went wrong
    notes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """In one process."""
        return bool(self.stages) and all(
            outcome == "ok" for stage, outcome in self.stages.items() if stage != "two ranks"
        )


def sweep(names: Iterable[str], *, jobs: int = 2, with_ranks: bool = True) -> Iterator[FamilyRow]:
    """The rows in the order of ``names``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with ThreadPoolExecutor(max_workers=jobs) as threads:
        yield from threads.map(lambda name: examine(context, name, with_ranks=with_ranks), names)


def examine(context: Any, name: str, *, with_ranks: bool) -> FamilyRow:
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix=f"family-{name}-"))
    try:
        (found,) = _run(context, [("stages", name, str(directory))])
        stages, notes = found.get("stages", {"process": found.get("error", "?")}), found.get("notes", {})
        if with_ranks and stages.get("load") == "ok":
            jobs = [("ranks", name, str(directory), rank, _RANKS) for rank in range(_RANKS)]
            answers = _run(context, jobs)
            errors = [answer["error"] for answer in answers if "error" in answer]
            stages["two ranks"] = errors[0] if errors else "ok"
        return FamilyRow(name, stages, notes, time.monotonic() - started)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(context: Any, jobs: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Run the jobs at the same time, a process each. A process that takes too long is killed."""
    processes = []
    for job in jobs:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, job), daemon=True)
        process.start()
        theirs.close()
        processes.append((process, ours))
    deadline = time.monotonic() + _SECONDS
    answers = [_answer(pipe, max(0.0, deadline - time.monotonic())) for _, pipe in processes]
    for process, pipe in processes:
        pipe.close()
        process.join(timeout=2)
        if process.is_alive():
            process.kill()
            process.join()
    return answers


def _answer(pipe: Connection, seconds: float) -> dict[str, Any]:
    try:
        if not pipe.poll(seconds):
            return {"error": f"took longer than {_SECONDS:.0f} s"}
        answer: dict[str, Any] = pipe.recv()
    except EOFError:
        return {"error": "the process died"}
    return answer


def _serve(pipe: Connection, job: tuple[Any, ...]) -> None:
    from benchmarks.families.ranks import follow_one_process
    from benchmarks.families.stages import run_stages

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    kind, name, directory, *rest = job
    try:
        if kind == "stages":
            pipe.send(run_stages(name, Path(directory)))
        else:
            pipe.send(follow_one_process(Path(directory), *rest))
    except Exception as error:
        traceback.print_exc()
        pipe.send({"error": f"{type(error).__name__}: {error}".partition("\n")[0][:300]})
