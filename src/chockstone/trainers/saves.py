"""Save checkpoints of a trainer in the background, while it trains and generates.

A checkpoint has two parts, made from one snapshot: the run's training state and exports on the Tinker server, and an
archive of the trainer's state, which holds their paths. The archive is written last and deleted first, so everything
that an archive names exists.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tinker

from chockstone.checkpoints import Checkpointer, SavedCheckpoint
from chockstone.checkpoints.runtime import threads
from chockstone.trainers.collector import Collector
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import FinalSaveFailed, TrainerError
from chockstone.trainers.reports.reports import EventReporter, saved_text
from chockstone.trainers.snapshot import KIND, TrainerSnapshot

FINAL_ATTEMPTS: Final = 3
_FINAL_PAUSE_SECONDS: Final = 1.0
_MOST_TO_DELETE: Final = 100
_DELETE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class TrainerCheckpoint:
    """A checkpoint that is durable, in the store and on the server."""

    step: int
    name: str  # of the trainer's archive
    paths: Mapping[str, str]  # "state", "sampler", "hf" → tinker://…


class TrainerSaver:
    """Runs one save at a time; the next one waits. Use it in the event loop's thread only."""

    def __init__(
        self,
        run: tinker.TrainingClient,
        checkpointer: Checkpointer,
        config: TrainerConfig,
        collector: Collector,
        report_event: EventReporter,
        *,
        delete_path: Callable[[str], object],  # deletes a checkpoint on the server; blocks
        newest: TrainerCheckpoint | None = None,
    ) -> None:
        self.newest = newest
        self._run = run
        self._checkpointer = checkpointer
        self._config = config
        self._collector = collector
        self._report_event = report_event
        self._delete_path = delete_path
        self._task: asyncio.Task[TrainerCheckpoint] | None = None
        self._failures = 0  # in a row
        self._retry_step = 0
        self._tried_step, self._attempts = -1, 0  # step of the last save, and how often it was tried
        self._to_delete: list[str] = []  # paths on the server that no archive names any more

    def is_due(self, step: int) -> bool:
        every = self._config.save_every
        return (every > 0 and step % every == 0) or (self._failures > 0 and step >= self._retry_step)

    async def ready(self, *, timeout_seconds: float | None = None) -> None:
        """Wait until no save is running, or until the timeout."""
        if self._task is not None:
            with self._collector.timed("time/wait_for_save"):
                await asyncio.wait([self._task], timeout=timeout_seconds)

    def begin(self, snapshot: TrainerSnapshot) -> asyncio.Task[TrainerCheckpoint]:
        """Start to save the run in its present state, which is that of the snapshot.

        Call it after ``ready``, and before the next step is submitted.
        """
        assert self._task is None or self._task.done(), "a save is running"
        self._attempts = self._attempts + 1 if snapshot.step == self._tried_step else 1
        self._tried_step = snapshot.step
        name = f"step-{snapshot.step:08d}"
        if self._attempts > 1:
            name += f"-{self._attempts}"  # the failed attempt may have left one of the same name
        requests: dict[str, Any] = {"state": self._run.save_state(name)}
        if "sampler" in self._config.exports:
            requests["sampler"] = self._run.save_weights_for_sampler(name)
        if "hf" in self._config.exports:
            requests["hf"] = self._run.save_weights_external(name)
        self._task = asyncio.create_task(self._save(snapshot, requests), name=f"save {name}")
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # already reported
        return self._task

    async def final(self, take_snapshot: Callable[[], TrainerSnapshot]) -> TrainerCheckpoint:
        """Save the last state and wait until it is durable. Raises FinalSaveFailed."""
        for attempt in range(1, FINAL_ATTEMPTS + 1):
            await self.ready()
            snapshot = take_snapshot()
            if self.newest is not None and self.newest.step == snapshot.step:
                return self.newest
            task = self.begin(snapshot)
            await asyncio.wait([task])
            if task.exception() is None:
                return task.result()
            if attempt < FINAL_ATTEMPTS:
                await asyncio.sleep(_FINAL_PAUSE_SECONDS)
        error = task.exception()
        raise self.failure(snapshot.step, f"in {FINAL_ATTEMPTS} attempts", f" The last error: {error}") from error

    def failure(self, step: int, how: str, why: str = "") -> FinalSaveFailed:
        newest = f"the newest checkpoint is of step {self.newest.step}" if self.newest else "there is no checkpoint"
        return FinalSaveFailed(f"step {step} could not be saved {how}; {newest}.{why}")

    async def close(self) -> None:
        """Cancel a save that is still running."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _save(self, snapshot: TrainerSnapshot, requests: Mapping[str, Any]) -> TrainerCheckpoint:
        try:
            kept = await self._finish(snapshot, requests)
        except Exception as error:
            self._note_failure(snapshot.step, error)
            raise
        self._failures = 0
        return kept

    async def _finish(self, snapshot: TrainerSnapshot, requests: Mapping[str, Any]) -> TrainerCheckpoint:
        started = time.perf_counter()
        answers = await asyncio.gather(*requests.values(), return_exceptions=True)
        paths = {what: answer.path for what, answer in zip(requests, answers, strict=True) if hasattr(answer, "path")}
        try:
            for what, answer in zip(requests, answers, strict=True):
                if isinstance(answer, asyncio.CancelledError):  # by the SDK: else gather itself had been cancelled
                    raise TrainerError(f"the client cancelled the save of {what!r}") from answer
                if isinstance(answer, BaseException):
                    raise answer
            saved = await self._write(snapshot, paths)
        except Exception:  # not when cancelled: the archive may be durable nevertheless, and names the paths
            await self._delete_leftovers(paths.values())
            raise
        self.newest = TrainerCheckpoint(snapshot.step, saved.name, paths)
        seconds = time.perf_counter() - started
        self._collector.add("time/save", seconds)
        self._report_event(saved_text(snapshot.step, seconds, paths["state"]))
        try:
            await threads.in_thread(self._delete_old)
        except Exception as error:  # noqa: BLE001  # reported; the next save tries again
            self._report_event(f"old checkpoints could not be deleted: {error}", level="warning")
        return self.newest

    async def _write(self, snapshot: TrainerSnapshot, paths: Mapping[str, str]) -> SavedCheckpoint:
        reward = snapshot.progress.best_reward
        handle = await self._checkpointer.save_async(
            await snapshot.state(paths),
            step=snapshot.step,
            kind=KIND,
            metrics={} if reward is None else {"best_reward": reward},
            metadata={"paths": dict(paths)},
            overwrite=True,
        )
        return await handle

    async def _delete_leftovers(self, paths: Iterable[str]) -> None:
        """Delete the paths of a failed save; best effort."""
        self._to_delete += paths
        try:
            await threads.in_thread(self._delete_listed)
        except Exception as error:  # noqa: BLE001  # reported; the error of the save matters more
            self._report_event(f"the leftovers of a failed save could not be deleted: {error}", level="warning")

    def _note_failure(self, step: int, error: Exception) -> None:
        self._failures += 1
        pause = min(2 ** (self._failures - 1), max(self._config.save_every, 1))
        self._retry_step = step + pause
        self._collector.add("saves/failed", 1)
        self._report_event(
            f"the checkpoint of step {step} failed and will be tried again at step {self._retry_step}: {error}",
            level="error",
        )

    def _delete_old(self) -> None:
        """Delete the archive first: everything that an existing archive names must exist."""
        found = [each for each in self._checkpointer.checkpoints() if each.manifest and each.manifest.kind == KIND]
        for old in found[: -self._config.keep]:
            assert old.manifest is not None
            self._checkpointer.store.delete(old.name)
            self._to_delete += old.manifest.metadata.get("paths", {}).values()
        self._delete_listed()

    def _delete_listed(self) -> None:
        """Delete the listed paths. Raises the first error; the next save tries the remaining ones again.

        Keeps the newest paths only, if there are very many. Stops soon after an error: the SDK may retry each path for
        minutes, and the next save waits.
        """
        errors: list[Exception] = []
        deadline = time.monotonic() + _DELETE_SECONDS
        paths, self._to_delete = self._to_delete[-_MOST_TO_DELETE:], []
        for path in paths:
            if errors and time.monotonic() > deadline:
                self._to_delete.insert(0, path)  # untried paths come first the next time
                continue
            try:
                self._delete_path(path)
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
                self._to_delete.append(path)
        if errors:
            raise errors[0]
