"""The training loop of one process, from the first step or from a checkpoint to the last step.

Three activities run concurrently and share state in the event loop's thread only: generating groups ahead, training
one step, saving one checkpoint. A step that was submitted is always finished, so that the state of the trainer
matches the weights between two steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import tinker
from tinker import types

from chockstone.checkpoints import LoopWatchdog
from chockstone.checkpoints.runtime import threads
from chockstone.checkpoints.runtime.watchdog import Stalls
from chockstone.trainers.collector import Collector, Measure
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.reports.reports import BackgroundReports, StepRecord
from chockstone.trainers.rollouts.advantages import TrainBatch, make_train_batch
from chockstone.trainers.rollouts.environment import Problem
from chockstone.trainers.rollouts.generation import PendingGroup, RolloutGenerator, SamplingPolicy
from chockstone.trainers.rollouts.loader import Loader
from chockstone.trainers.rollouts.rollouts import RolloutGroup
from chockstone.trainers.rollouts.worker import RolloutWorker
from chockstone.trainers.saves import TrainerCheckpoint, TrainerSaver
from chockstone.trainers.snapshot import TrainerProgress, TrainerSnapshot

_STALL_WARNING_SECONDS: Final = 0.1  # warn if one callback holds the event loop for longer


class Stateful(Protocol):
    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


class TrainingLoop:
    """``Trainer`` makes its parts. Call ``run`` once."""

    def __init__(
        self,
        config: TrainerConfig,
        run: tinker.TrainingClient,
        worker: RolloutWorker,
        loader: Loader,
        saver: TrainerSaver,
        *,
        collector: Collector,
        reports: BackgroundReports,
        watchdog: LoopWatchdog,
        identity: Mapping[str, Any],
        problems: Sequence[Problem],  # for evaluation
        progress: TrainerProgress,
        window: Sequence[PendingGroup] = (),  # restored from a checkpoint
        extra: Mapping[str, Stateful],
    ) -> None:
        self.progress = progress
        self._config = config
        self._run = run
        self._worker = worker
        self._loader = loader
        self._saver = saver
        self._collector = collector
        self._reports = reports
        self._watchdog = watchdog
        self._identity = identity
        self._problems = problems
        self._window = tuple(window)
        self._extra = extra
        self._generation: RolloutGenerator | None = None
        self._step: asyncio.Task[None] | None = None
        self._recorded = 0.0  # time of the last step's record
        self._stall_warning_seconds = _STALL_WARNING_SECONDS

    async def run(self) -> TrainerCheckpoint:
        """Train to the last step and save. When cancelled, save the present state and raise CancelledError.

        Raises FinalSaveFailed if the last save fails, or takes longer than ``stop_seconds`` after a cancellation.
        """
        try:
            await self._run_tasks()
            return await self._saver.final(self._take_snapshot)
        except asyncio.CancelledError:
            self._reports.report_event("stopping: finishing the current step, then saving")
            await self._stop()
            raise
        except BaseException:
            await self._saver.ready(timeout_seconds=self._config.stop_seconds)
            raise
        finally:
            await self._saver.close()
            if self._step is not None:
                self._step.cancel()
                await asyncio.wait([self._step])

    async def _stop(self) -> None:
        """Finish and save within ``stop_seconds``: the SDK would retry a lost server for much longer."""
        ending = asyncio.create_task(self._finish_and_save())
        try:
            await asyncio.wait([ending], timeout=self._config.stop_seconds)
            if ending.done():
                ending.result()
            elif self._saver.newest is None or self._saver.newest.step != self.progress.step:
                raise self._saver.failure(self.progress.step, f"within {self._config.stop_seconds:g} s")
        finally:
            ending.cancel()
            await asyncio.wait([ending])

    async def _finish_and_save(self) -> None:
        if self._step is not None:
            await asyncio.wait([self._step])
            self._step.result()  # raises: the weights are unknown after a failed step
        if self._generation is not None:
            await self._saver.final(self._take_snapshot)

    async def _run_tasks(self) -> None:
        """Raises the first error of any task unchanged, or CancelledError if the trainer was cancelled."""
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        error: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                self._generation = RolloutGenerator(
                    self._loader,
                    self._worker.generate_group,
                    tasks.create_task,
                    self._config,
                    trained=self.progress.step,
                    restored=self._window,
                )
                await self._train(self._generation, tasks)
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]  # the first one; it ended the others
        finally:
            if self._generation is not None:
                self._generation.close()
        if error is not None and task.cancelling() > cancelled_before:
            self._reports.report_event(f"error while stopping: {error!r}", level="error")
            raise asyncio.CancelledError from error
        if error is not None:
            raise error  # outside of the except block, which would replace its context

    async def _train(self, generation: RolloutGenerator, tasks: asyncio.TaskGroup) -> None:
        if self.progress.step >= self._config.steps:
            return
        policy = await self._synchronise()
        generation.publish(policy)
        self._watchdog.drain()  # discard stalls of the start, when libraries were imported
        self._recorded = time.perf_counter()
        evaluating: asyncio.Task[None] | None = None
        while self.progress.step < self._config.steps:
            with self._collector.timed("time/wait_for_rollouts"):
                groups = await generation.next_batch()
            self._step = asyncio.create_task(self._make_step(generation, groups))
            await asyncio.shield(self._step)
            policy = await self._synchronise()
            generation.publish(policy)
            if self._saver.is_due(self.progress.step):
                await self._saver.ready()
                self._saver.begin(self._take_snapshot())
            if self._is_evaluation_due():
                if evaluating is not None:
                    await asyncio.wait([evaluating])  # one evaluation at a time
                evaluating = tasks.create_task(self._evaluate(policy))

    async def _make_step(self, generation: RolloutGenerator, groups: Sequence[RolloutGroup]) -> None:
        """Train one step and record it, before a checkpoint can contain it."""
        with self._collector.timed("time/train"):
            batch, requests = await asyncio.to_thread(self._submit_step, groups)
            answers = [await future for future in requests]
        rows = sample_rows(groups, batch.advantages, self.progress.step)
        mean = sum(row["reward"] for row in rows) / len(rows)
        self.progress.add_step(mean, samples=len(rows), tokens=sum(row["tokens"] for row in rows))
        generation.finish_batch()
        metrics = {"reward/mean": mean, "reward/best": self.progress.best_reward or 0.0}
        metrics["samples/learnt_from"] = float(len(batch.data))
        if batch.kl_to_base is not None:
            metrics["kl/to_base"] = batch.kl_to_base
        for answer in answers:
            metrics |= {f"server/{name}": float(value) for name, value in (answer.metrics or {}).items()}
        await self._reports.record(self._with_measurements(StepRecord(self.progress.step, metrics, rows)))

    def _with_measurements(self, record: StepRecord) -> StepRecord:
        now = time.perf_counter()
        seconds, self._recorded = now - self._recorded, now
        self.progress.seconds += seconds
        stalls = self._watchdog.drain()
        self._warn_about(stalls)
        return add_measurements(record, self._collector.drain(), stalls, seconds)

    def _warn_about(self, stalls: Stalls) -> None:
        """Warn each time a stall is twice as long as the longest one before."""
        worst = max(stalls.stalls, key=lambda stall: stall.held_seconds, default=None)
        if worst is None or worst.held_seconds < self._stall_warning_seconds:
            return
        self._stall_warning_seconds = 2 * worst.held_seconds
        self._reports.report_event(
            f"the event loop was held for {worst.held_seconds:.2f} s, and generation with it; such calls belong in a "
            f"thread:\n{worst.stack.rstrip()}",
            level="warning",
        )

    def _submit_step(self, groups: Sequence[RolloutGroup]) -> tuple[TrainBatch, list[Any]]:
        """Submit both operations of a step, in order. Call in a thread: encoding a batch takes time."""
        batch = make_train_batch(groups, self._config)
        if not batch.data:
            return batch, []
        adam = types.AdamParams(
            learning_rate=self._config.learning_rate_at(self.progress.step),
            weight_decay=self._config.weight_decay,
            grad_clip_norm=self._config.grad_clip_norm,
        )
        passed = self._run.forward_backward(batch.data, self._config.loss, dict(self._config.loss_config) or None)
        return batch, [passed, self._run.optim_step(adam)]

    async def _synchronise(self) -> SamplingPolicy:
        """Return a sampler of the present weights."""
        with self._collector.timed("time/sync"):
            # The SDK's _async variant of this call blocks the event loop.
            sampler = await threads.in_thread(self._run.save_weights_and_get_sampling_client)
        return SamplingPolicy(self.progress.step, sampler)

    def _take_snapshot(self) -> TrainerSnapshot:
        """Call between two steps, in the event loop's thread. Must not await: see ``TrainerSnapshot``."""
        assert self._generation is not None
        extra = {name: each.state_dict() for name, each in self._extra.items()}
        return TrainerSnapshot.take(
            self._identity, self.progress, self._loader.state_dict(), tuple(self._generation.window), extra
        )

    def _is_evaluation_due(self) -> bool:
        every, step = self._config.evaluate_every, self.progress.step
        return every > 0 and bool(self._problems) and (step % every == 0 or step == self._config.steps)

    async def _evaluate(self, policy: SamplingPolicy) -> None:
        with self._collector.timed("time/evaluate"):
            metrics = await self._worker.evaluate(self._problems, policy)
        self.progress.evaluation, self.progress.evaluated_step = metrics, policy.version
        await self._reports.evaluated(policy.version, metrics)


def sample_rows(
    groups: Sequence[RolloutGroup], advantages: Sequence[Sequence[float]], steps_before: int
) -> list[dict[str, Any]]:
    """Return one row for each sample that a step trained on."""
    return [
        {
            "sample_id": group.sample_id(number),
            "problem_id": group.problem_id,
            "epoch": group.draw.epoch,
            "version": group.version,
            "staleness": steps_before - group.version,
            "reward": sample.reward,
            "advantage": advantage,
            "tokens": len(sample.tokens),
            "is_truncated": sample.is_truncated,
        }
        for group, of_group in zip(groups, advantages, strict=True)
        for number, (sample, advantage) in enumerate(zip(group.samples, of_group, strict=True))
    ]


def add_measurements(record: StepRecord, measured: Mapping[str, Measure], stalls: Stalls, seconds: float) -> StepRecord:
    """Return ``record`` with what was measured in the ``seconds`` since the record before."""
    staleness = [row["staleness"] for row in record.samples]
    metrics = dict(record.metrics)
    metrics["staleness/mean"] = sum(staleness) / len(staleness)
    metrics["staleness/max"] = float(max(staleness))
    metrics["samples/truncated"] = float(sum(row["is_truncated"] for row in record.samples))
    for name, measure in measured.items():
        metrics[name] = measure.total
        if name.startswith("time/") and measure.count > 1:
            metrics[f"{name}/mean"] = measure.mean
            metrics[f"{name}/max"] = measure.most
    metrics["tokens/per_second"] = metrics.get("tokens/generated", 0.0) / seconds
    metrics["time/step"] = seconds
    metrics["loop/stall_p99"] = stalls.p99_seconds
    metrics["loop/stall_max"] = stalls.max_seconds
    return replace(record, metrics=metrics)
