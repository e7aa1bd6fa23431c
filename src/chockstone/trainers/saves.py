"""Saves: checkpoints of a trainer, written in the background while it trains and generates.

A checkpoint is two things made at one cut: the run's training state (and exports) on the Tinker server, and
an archive of the trainer's own state, which names them. The archive is written last, so whatever it
names is there; it is deleted first, for the same reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tinker

from chockstone.checkpoints import Checkpointer, Saved
from chockstone.checkpoints.runtime import threads
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import FinalSaveFailed, TrainerError
from chockstone.trainers.reports.collector import Collector
from chockstone.trainers.reports.reporting import Announce
from chockstone.trainers.snapshot import KIND, TrainerSnapshot

FINAL_ATTEMPTS: Final = 3
_FINAL_PAUSE_SECONDS: Final = 1.0
_MOST_CONDEMNED: Final = 100
_DELETE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class KeptTrainerSave:
    """A checkpoint that is durable, here and on the server."""

    step: int
    name: str  # of the trainer's archive
    paths: Mapping[str, str]  # "state", "sampler", "hf" → tinker://…


class Saves:
    """One save at a time; the next one waits for it. Used in the event loop's thread only."""

    def __init__(
        self,
        run: tinker.TrainingClient,
        checkpointer: Checkpointer,
        config: TrainerConfig,
        collector: Collector,
        announce: Announce,
        *,
        delete_path: Callable[[str], object],  # blocks; of a checkpoint on the server
        newest: KeptTrainerSave | None = None,
    ) -> None:
        self.newest = newest
        self._run = run
        self._checkpointer = checkpointer
        self._config = config
        self._collector = collector
        self._announce = announce
        self._delete_path = delete_path
        self._task: asyncio.Task[KeptTrainerSave] | None = None
        self._failures = 0  # in a row
        self._retry_step = 0
        self._tried_step, self._attempts = -1, 0  # the last one that a save was begun of, and how often
        self._condemned: list[str] = []  # on the server, and named by no archive any more

    def is_due(self, step: int) -> bool:
        every = self._config.save_every
        return (every > 0 and step % every == 0) or (self._failures > 0 and step >= self._retry_step)

    async def ready(self, *, timeout_seconds: float | None = None) -> None:
        """Until no save is running, or the time is over."""
        if self._task is not None:
            with self._collector.timed("time/wait_for_save"):
                await asyncio.wait([self._task], timeout=timeout_seconds)

    def begin(self, cut: TrainerSnapshot) -> asyncio.Task[KeptTrainerSave]:
        """Save the run as it is now, which is as the cut says. Call when ``ready``, before asking for the next step."""
        assert self._task is None or self._task.done(), "a save is running"
        self._attempts = self._attempts + 1 if cut.step == self._tried_step else 1
        self._tried_step = cut.step
        name = f"step-{cut.step:08d}"
        if self._attempts > 1:
            name += f"-{self._attempts}"  # one that failed may have left its own
        asked: dict[str, Any] = {"state": self._run.save_state(name)}
        if "sampler" in self._config.exports:
            asked["sampler"] = self._run.save_weights_for_sampler(name)
        if "hf" in self._config.exports:
            asked["hf"] = self._run.save_weights_external(name)
        self._task = asyncio.create_task(self._save(cut, asked), name=f"save {name}")
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # it was announced
        return self._task

    async def final(self, take_cut: Callable[[], TrainerSnapshot]) -> KeptTrainerSave:
        """Save what there is at the end, and wait for it. Raises FinalSaveFailed."""
        for attempt in range(1, FINAL_ATTEMPTS + 1):
            await self.ready()
            cut = take_cut()
            if self.newest is not None and self.newest.step == cut.step:
                return self.newest
            task = self.begin(cut)
            await asyncio.wait([task])
            if task.exception() is None:
                return task.result()
            if attempt < FINAL_ATTEMPTS:
                await asyncio.sleep(_FINAL_PAUSE_SECONDS)
        error = task.exception()
        raise self.failure(cut.step, f"in {FINAL_ATTEMPTS} attempts", f" The last error: {error}") from error

    def failure(self, step: int, how: str, why: str = "") -> FinalSaveFailed:
        newest = f"the newest checkpoint is of step {self.newest.step}" if self.newest else "there is no checkpoint"
        return FinalSaveFailed(f"step {step} could not be saved {how}; {newest}.{why}")

    async def close(self) -> None:
        """Give up a save that is still running."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _save(self, cut: TrainerSnapshot, asked: Mapping[str, Any]) -> KeptTrainerSave:
        try:
            kept = await self._finish(cut, asked)
        except Exception as error:
            self._note_failure(cut.step, error)
            raise
        self._failures = 0
        return kept

    async def _finish(self, cut: TrainerSnapshot, asked: Mapping[str, Any]) -> KeptTrainerSave:
        started = time.perf_counter()
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        paths = {what: answer.path for what, answer in zip(asked, answers, strict=True) if hasattr(answer, "path")}
        try:
            for what, answer in zip(asked, answers, strict=True):
                if isinstance(answer, asyncio.CancelledError):  # not by us: gather would have been
                    raise TrainerError(f"the client gave up the save of {what!r}") from answer
                if isinstance(answer, BaseException):
                    raise answer
            saved = await self._write(cut, paths)
        except Exception:  # not when cancelled: the archive may be durable all the same, and names them
            await self._delete_leftovers(paths.values())
            raise
        self.newest = KeptTrainerSave(cut.step, saved.name, paths)
        seconds = time.perf_counter() - started
        self._collector.add("time/save", seconds)
        self._announce(f"checkpoint step-{cut.step:08d} saved in {seconds:.1f} s: {paths['state']}")
        try:
            await threads.in_thread(self._delete_old)
        except Exception as error:  # noqa: BLE001  # announced; what is left over is deleted after the next save
            self._announce(f"old checkpoints could not be deleted: {error}", level="warning")
        return self.newest

    async def _write(self, cut: TrainerSnapshot, paths: Mapping[str, str]) -> Saved:
        reward = cut.tally.best_reward
        handle = await self._checkpointer.save_async(
            await cut.state(paths),
            step=cut.step,
            kind=KIND,
            metrics={} if reward is None else {"best_reward": reward},
            metadata={"paths": dict(paths)},
            overwrite=True,
        )
        return await handle

    async def _delete_leftovers(self, paths: Iterable[str]) -> None:
        """Of a save that failed; best effort."""
        self._condemned += paths
        try:
            await threads.in_thread(self._delete_condemned)
        except Exception as error:  # noqa: BLE001  # announced; the save's own error is what counts
            self._announce(f"what a failed save left behind could not be deleted: {error}", level="warning")

    def _note_failure(self, step: int, error: Exception) -> None:
        self._failures += 1
        pause = min(2 ** (self._failures - 1), max(self._config.save_every, 1))
        self._retry_step = step + pause
        self._collector.add("saves/failed", 1)
        self._announce(
            f"the checkpoint of step {step} failed and will be tried again at step {self._retry_step}: {error}",
            level="error",
        )

    def _delete_old(self) -> None:
        """The archive first: what it names is never missing while it can be found."""
        found = [each for each in self._checkpointer.checkpoints() if each.manifest and each.manifest.kind == KIND]
        for old in found[: -self._config.keep]:
            assert old.manifest is not None
            self._checkpointer.store.delete(old.name)
            self._condemned += old.manifest.metadata.get("paths", {}).values()
        self._delete_condemned()

    def _delete_condemned(self) -> None:
        """Raises the first error; what is left is tried after the next save, and beyond some number forgotten.

        After an error, only while there is time: the SDK may try each path for minutes, and the next save waits.
        """
        errors: list[Exception] = []
        deadline = time.monotonic() + _DELETE_SECONDS
        paths, self._condemned = self._condemned[-_MOST_CONDEMNED:], []
        for path in paths:
            if errors and time.monotonic() > deadline:
                self._condemned.insert(0, path)  # those that were not tried come first the next time
                continue
            try:
                self._delete_path(path)
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
                self._condemned.append(path)
        if errors:
            raise errors[0]
