"""Generation: rollouts are made ahead of training, no further ahead than staleness allows.

The window holds, in the order of the loader, every group that was drawn and is not yet trained on.
Batch m is always the same draws, whoever is fast or slow, and may be begun once the policy has seen
m - staleness steps. With staleness 1 that is one-step-off: batch n+1 is generated, all of it by the
policy that batch n was begun with, while batch n is trained on.

All of this happens in the event loop's thread, and ``window`` and ``loader`` change together, without
an await in between: whoever looks at both between two awaits sees one consistent picture.
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
from chockstone.trainers.rollouts.loader import Draw, Loader
from chockstone.trainers.rollouts.rollouts import RolloutGroup


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """The weights after so many steps, ready to be sampled from."""

    version: int
    sampler: tinker.SamplingClient


@dataclass(slots=True, eq=False)
class Slot:
    """One draw and, sooner or later, its group. Cancelled: generation ended before there was one."""

    draw: Draw
    group: asyncio.Future[RolloutGroup] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_begun: bool = False

    async def settled(self) -> RolloutGroup | None:
        """The group; None if there will be none. Cancelling whoever waits here changes nothing."""
        await asyncio.wait([self.group])
        return None if self.group.cancelled() else self.group.result()


class RolloutGenerator:
    """``play`` makes a group of a draw; ``spawn`` runs it, and is where its error comes out."""

    def __init__(
        self,
        loader: Loader,
        play: Callable[[Draw, SamplingPolicy], Awaitable[RolloutGroup]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        config: TrainerConfig,
        *,
        trained: int = 0,  # batches, in earlier lives
        restored: Iterable[Slot] = (),
    ) -> None:
        self.loader = loader
        self.window: deque[Slot] = deque(restored)
        self._play = play
        self._spawn = spawn
        self._config = config
        self._trained = trained
        self._policy: SamplingPolicy | None = None
        self._running = 0
        self._is_closed = False

    def publish(self, policy: SamplingPolicy) -> None:
        """From now on groups are begun with these weights. Those that run keep the ones they have."""
        self._policy = policy
        self._begin_what_may()

    async def next_batch(self) -> list[RolloutGroup]:
        """The groups to train on next. They stay in the window until ``finish_batch``."""
        slots = list(islice(self.window, self._config.batch_size))
        return [await asyncio.shield(slot.group) for slot in slots]

    def finish_batch(self) -> None:
        """The first batch of the window has been trained on."""
        for _ in range(self._config.batch_size):
            self.window.popleft()
        self._trained += 1

    def close(self) -> None:
        """Nothing is begun any more, and what was not finished never will be."""
        self._is_closed = True
        for slot in self.window:
            slot.group.cancel()

    def _begin_what_may(self) -> None:
        policy = self._policy
        if policy is None or self._is_closed:
            return
        limit = self._config.concurrency
        for slot in self._waiting():
            if limit is not None and self._running >= limit:
                return
            slot.is_begun = True
            self._running += 1
            self._spawn(self._fill(slot, policy))

    def _waiting(self) -> Sequence[Slot]:
        """Slots that are due, oldest first. Draws what the policy has come to allow."""
        assert self._policy is not None
        while True:
            batch = self._trained + len(self.window) // self._config.batch_size
            if batch >= self._config.steps or batch - self._policy.version > self._config.staleness:
                break
            self.window.append(Slot(self.loader.draw()))
        batches = self._policy.version + self._config.staleness - self._trained + 1  # a restored window may hold more
        due = islice(self.window, max(0, batches * self._config.batch_size))
        return [slot for slot in due if not slot.is_begun]

    async def _fill(self, slot: Slot, policy: SamplingPolicy) -> None:
        try:
            group = await self._play(slot.draw, policy)
            if not slot.group.done():
                slot.group.set_result(group)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise TrainerError(f"draw {slot.draw.number} was cancelled from within, by reward or sampler") from error
        finally:
            self._running -= 1
            slot.group.cancel()  # of no effect once there is a group
        self._begin_what_may()


def restored_slots(
    window: Iterable[tuple[Draw, RolloutGroup | None]], config: TrainerConfig, *, trained: int
) -> list[Slot]:
    """As they were when they were saved.

    What has no group is generated again; so is what would be too old now, since the limit was lowered.
    """
    slots = []
    for place, (draw, group) in enumerate(window):
        slot = Slot(draw)
        if group is not None and trained + place // config.batch_size - group.version <= config.staleness:
            slot.is_begun = True
            slot.group.set_result(group)
        slots.append(slot)
    return slots
