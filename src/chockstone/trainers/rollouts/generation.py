"""Generate rollouts ahead of training, at most ``staleness`` steps ahead.

The window holds every group that was drawn and is not trained on yet, in the order of the loader. Batch m always
holds the same draws, independent of timing. The generator may start batch m once the policy has made
m - staleness steps. Staleness 1 is one-step-off training: while batch n is trained on, the policy that started
batch n generates the whole of batch n+1.

The generator runs in the event loop's thread. ``window`` and ``loader`` change together, without an await in
between, so a snapshot that reads both between two awaits is consistent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import tinker

from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import TrainerError
from chockstone.trainers.rollouts.loader import Loader, ProblemDraw
from chockstone.trainers.rollouts.rollouts import RolloutGroup


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """A sampling client for the weights after ``version`` steps."""

    version: int
    sampler: tinker.SamplingClient


@dataclass(slots=True, eq=False)
class PendingGroup:
    """One draw and the future of its group. The future is cancelled if generation ends before the group exists."""

    draw: ProblemDraw
    group: asyncio.Future[RolloutGroup] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_begun: bool = False

    async def wait(self) -> RolloutGroup | None:
        """Return the group, or None if generation ended without it. Cancelling this call does not cancel the group."""
        await asyncio.wait([self.group])
        return None if self.group.cancelled() else self.group.result()


class RolloutGenerator:
    """``generate_group`` makes the group of a draw. ``spawn`` starts it as a task and receives its error."""

    def __init__(
        self,
        loader: Loader,
        generate_group: Callable[[ProblemDraw, SamplingPolicy], Awaitable[RolloutGroup]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        config: TrainerConfig,
        *,
        trained: int = 0,  # batches that earlier processes of this run trained on
        restored: Iterable[PendingGroup] = (),
    ) -> None:
        self.loader = loader
        self.window: deque[PendingGroup] = deque(restored)
        self._generate_group = generate_group
        self._spawn = spawn
        self._config = config
        self._trained = trained
        self._policy: SamplingPolicy | None = None
        self._running = 0
        self._is_closed = False

    def publish(self, policy: SamplingPolicy) -> None:
        """Use this policy for groups that start from now on. Running groups keep the policy they started with."""
        self._policy = policy
        self._start_due_groups()

    async def next_batch(self) -> list[RolloutGroup]:
        """Wait for the groups of the next batch. They stay in the window until ``finish_batch``."""
        batch = list(islice(self.window, self._config.batch_size))
        return [await asyncio.shield(pending.group) for pending in batch]

    def finish_batch(self) -> None:
        """Remove the first batch from the window, after it was trained on."""
        for _ in range(self._config.batch_size):
            self.window.popleft()
        self._trained += 1

    def close(self) -> None:
        """Start no more groups, and cancel the futures of unfinished ones."""
        self._is_closed = True
        for pending in self.window:
            pending.group.cancel()

    def _start_due_groups(self) -> None:
        policy = self._policy
        if policy is None or self._is_closed:
            return
        limit = self._config.concurrency
        for pending in self._due_groups():
            if limit is not None and self._running >= limit:
                return
            pending.is_begun = True
            self._running += 1
            self._spawn(self._generate(pending, policy))

    def _due_groups(self) -> Sequence[PendingGroup]:
        """Draw the problems that the policy's version allows, and return the groups to start, oldest first."""
        assert self._policy is not None
        while True:
            batch = self._trained + len(self.window) // self._config.batch_size
            if batch >= self._config.steps or batch - self._policy.version > self._config.staleness:
                break
            self.window.append(PendingGroup(self.loader.draw()))
        batches = self._policy.version + self._config.staleness - self._trained + 1  # a restored window may hold more
        due = islice(self.window, max(0, batches * self._config.batch_size))
        return [pending for pending in due if not pending.is_begun]

    async def _generate(self, pending: PendingGroup, policy: SamplingPolicy) -> None:
        try:
            group = await self._generate_group(pending.draw, policy)
            if not pending.group.done():
                pending.group.set_result(group)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise TrainerError(f"draw {pending.draw.number} was cancelled from within, by reward or sampler") from error
        finally:
            self._running -= 1
            pending.group.cancel()  # no effect once the group is set
        self._start_due_groups()


def restore_window(
    window: Iterable[tuple[ProblemDraw, RolloutGroup | None]], config: TrainerConfig, *, trained: int
) -> list[PendingGroup]:
    """Rebuild the window of a saved trainer.

    A draw without a group is generated again. So is a group that exceeds ``staleness`` because the setting was lowered.
    """
    restored = []
    for place, (draw, group) in enumerate(window):
        pending = PendingGroup(draw)
        if group is not None and trained + place // config.batch_size - group.version <= config.staleness:
            pending.is_begun = True
            pending.group.set_result(group)
        restored.append(pending)
    return restored
