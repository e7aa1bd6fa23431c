"""Training: the loop of one life of a trainer, from its first step or from where an earlier life stopped.

Three things go on at once and meet only in the event loop's thread: groups are generated ahead, one step is
trained, one checkpoint is saved. A step that was begun is always finished, so that there is always a
moment at which weights and trainer agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import tinker
from tinker import types

from chockstone.checkpoints import LoopWatchdog
from chockstone.checkpoints.runtime import threads
from chockstone.checkpoints.runtime.watchdog import Stalls
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.reports.collector import Collector
from chockstone.trainers.reports.reporting import Reporting
from chockstone.trainers.reports.reports import StepRecord
from chockstone.trainers.reports.summary import sample_rows, step_metrics
from chockstone.trainers.rollouts.advantages import TrainBatch, make_train_batch
from chockstone.trainers.rollouts.environment import Problem
from chockstone.trainers.rollouts.evaluation import evaluate
from chockstone.trainers.rollouts.generation import RolloutGenerator, SamplingPolicy, Slot
from chockstone.trainers.rollouts.loader import Loader
from chockstone.trainers.rollouts.rollouts import RolloutGroup
from chockstone.trainers.rollouts.worker import RolloutWorker
from chockstone.trainers.saves import KeptTrainerSave, Saves
from chockstone.trainers.snapshot import TrainerProgress, TrainerSnapshot

_HELD_SECONDS: Final = 0.1  # of the event loop, by one callback: worth a warning


class Stateful(Protocol):
    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


class TrainingLoop:
    """What is needed for it is made by ``Trainer``; ``run`` is called once."""

    def __init__(
        self,
        config: TrainerConfig,
        run: tinker.TrainingClient,
        player: RolloutWorker,
        loader: Loader,
        saves: Saves,
        *,
        collector: Collector,
        reporting: Reporting,
        watchdog: LoopWatchdog,
        identity: Mapping[str, Any],
        problems: Sequence[Problem],  # to evaluate with
        tally: TrainerProgress,
        slots: Sequence[Slot] = (),
        extra: Mapping[str, Stateful],
    ) -> None:
        self.tally = tally
        self._config = config
        self._run = run
        self._player = player
        self._loader = loader
        self._saves = saves
        self._collector = collector
        self._reporting = reporting
        self._watchdog = watchdog
        self._identity = identity
        self._problems = problems
        self._slots = tuple(slots)
        self._extra = extra
        self._generation: RolloutGenerator | None = None
        self._step: asyncio.Task[None] | None = None
        self._recorded = 0.0  # when the last step was
        self._held_worth_telling = _HELD_SECONDS

    async def run(self) -> KeptTrainerSave:
        """Train to the last step and save. Cancelled, it saves what it has and is cancelled then.

        Raises FinalSaveFailed if it cannot, or not in the time that there is for it.
        """
        try:
            await self._train_to_the_end()
            return await self._saves.final(self._cut)
        except asyncio.CancelledError:
            self._reporting.announce("stopping: the step under way is finished, then its state is saved")
            await self._stop()
            raise
        except BaseException:
            await self._saves.ready(timeout_seconds=self._config.stop_seconds)
            raise
        finally:
            await self._saves.close()
            if self._step is not None:
                self._step.cancel()
                await asyncio.wait([self._step])

    async def _stop(self) -> None:
        """In time: a server that is gone would be waited for as long as the SDK tries."""
        ending = asyncio.create_task(self._end())
        try:
            await asyncio.wait([ending], timeout=self._config.stop_seconds)
            if ending.done():
                ending.result()
            elif self._saves.newest is None or self._saves.newest.step != self.tally.step:
                raise self._saves.failure(self.tally.step, f"within {self._config.stop_seconds:g} s")
        finally:
            ending.cancel()
            await asyncio.wait([ending])

    async def _end(self) -> None:
        if self._step is not None:
            await asyncio.wait([self._step])
            self._step.result()  # after a step that failed nobody knows what the weights are
        if self._generation is not None:
            await self._saves.final(self._cut)

    async def _train_to_the_end(self) -> None:
        """Raises the first error of any task as it was raised, unless it came because all were cancelled."""
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        error: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                self._generation = RolloutGenerator(
                    self._loader,
                    self._player.play,
                    tasks.create_task,
                    self._config,
                    trained=self.tally.step,
                    restored=self._slots,
                )
                await self._train(self._generation, tasks)
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]  # the one that began it
        finally:
            if self._generation is not None:
                self._generation.close()
        if error is not None and task.cancelling() > cancelled_before:
            self._reporting.announce(f"while it was being stopped: {error!r}", level="error")
            raise asyncio.CancelledError from error
        if error is not None:
            raise error  # out here, where its own cause and context stay what they are

    async def _train(self, generation: RolloutGenerator, tasks: asyncio.TaskGroup) -> None:
        if self.tally.step >= self._config.steps:
            return
        policy = await self._synchronise()
        generation.publish(policy)
        self._watchdog.drain()  # of the start: libraries were imported
        self._recorded = time.perf_counter()
        evaluating: asyncio.Task[None] | None = None
        while self.tally.step < self._config.steps:
            with self._collector.timed("time/wait_for_rollouts"):
                groups = await generation.next_batch()
            self._step = asyncio.create_task(self._make_step(generation, groups))
            await asyncio.shield(self._step)
            policy = await self._synchronise()
            generation.publish(policy)
            if self._saves.is_due(self.tally.step):
                await self._saves.ready()
                self._saves.begin(self._cut())
            if self._is_evaluation_due():
                if evaluating is not None:
                    await asyncio.wait([evaluating])  # else they would add up
                evaluating = tasks.create_task(self._evaluate(policy))

    async def _make_step(self, generation: RolloutGenerator, groups: Sequence[RolloutGroup]) -> None:
        """Once asked for, a step is made and recorded, before a checkpoint can hold it."""
        with self._collector.timed("time/train"):
            lesson, asked = await asyncio.to_thread(self._ask, groups)
            answers = [await future for future in asked]
        rows = sample_rows(groups, lesson.advantages, self.tally.step)
        mean = sum(row["reward"] for row in rows) / len(rows)
        self.tally.add_step(mean, samples=len(rows), tokens=sum(row["tokens"] for row in rows))
        generation.finish_batch()
        metrics = {"reward/mean": mean, "reward/best": self.tally.best_reward or 0.0}
        metrics["samples/learnt_from"] = float(len(lesson.data))
        if lesson.kl_to_base is not None:
            metrics["kl/to_base"] = lesson.kl_to_base
        for answer in answers:
            metrics |= {f"server/{name}": float(value) for name, value in (answer.metrics or {}).items()}
        await self._reporting.record(self._measured(StepRecord(self.tally.step, metrics, rows)))

    def _measured(self, record: StepRecord) -> StepRecord:
        now = time.perf_counter()
        seconds, self._recorded = now - self._recorded, now
        self.tally.seconds += seconds
        stalls = self._watchdog.drain()
        self._warn_of(stalls)
        return step_metrics(record, self._collector.drain(), stalls, seconds)

    def _warn_of(self, stalls: Stalls) -> None:
        """Each time it is twice as bad as it ever was: seldom, and soon."""
        worst = max(stalls.stalls, key=lambda stall: stall.held_seconds, default=None)
        if worst is None or worst.held_seconds < self._held_worth_telling:
            return
        self._held_worth_telling = 2 * worst.held_seconds
        self._reporting.announce(
            f"the event loop was held for {worst.held_seconds:.2f} s, and generation with it; such calls belong in a "
            f"thread:\n{worst.stack.rstrip()}",
            level="warning",
        )

    def _ask(self, groups: Sequence[RolloutGroup]) -> tuple[TrainBatch, list[Any]]:
        """Both operations of a step, in order and one right after the other. In a thread: there is much to encode."""
        lesson = make_train_batch(groups, self._config)
        if not lesson.data:
            return lesson, []
        adam = types.AdamParams(
            learning_rate=self._config.learning_rate_at(self.tally.step),
            weight_decay=self._config.weight_decay,
            grad_clip_norm=self._config.grad_clip_norm,
        )
        passed = self._run.forward_backward(lesson.data, self._config.loss, dict(self._config.loss_config) or None)
        return lesson, [passed, self._run.optim_step(adam)]

    async def _synchronise(self) -> SamplingPolicy:
        """A sampler of the weights as they are."""
        with self._collector.timed("time/sync"):
            # The SDK's own _async variant of this waits inline on the loop.
            sampler = await threads.in_thread(self._run.save_weights_and_get_sampling_client)
        return SamplingPolicy(self.tally.step, sampler)

    def _cut(self) -> TrainerSnapshot:
        """Without an await, in the loop's thread, between two steps: see ``TrainerSnapshot``."""
        assert self._generation is not None
        extra = {name: each.state_dict() for name, each in self._extra.items()}
        return TrainerSnapshot.take(
            self._identity, self.tally, self._loader.state_dict(), tuple(self._generation.window), extra
        )

    def _is_evaluation_due(self) -> bool:
        every, step = self._config.evaluate_every, self.tally.step
        return every > 0 and bool(self._problems) and (step % every == 0 or step == self._config.steps)

    async def _evaluate(self, policy: SamplingPolicy) -> None:
        with self._collector.timed("time/evaluate"):
            metrics = await evaluate(self._player, self._problems, policy)
        self.tally.evaluation, self.tally.evaluated_step = metrics, policy.version
        await self._reporting.evaluated(policy.version, metrics)
