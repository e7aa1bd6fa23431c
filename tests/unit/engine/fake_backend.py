"""A backend with numbers for tensors: everything it is told happens at once, unless a test holds it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chockstone.backends.channel import Message
from chockstone.backends.local import WorkerLost
from chockstone.engine.backend import Backend
from chockstone.wire.failures import BadRequest, ServerFailure


@dataclass
class Numbers:
    """A run: a pass adds its body to the gradient, a step adds the gradient to the weight."""

    weight: int = 0
    gradient: int = 0


class FakeBackend:
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], bytes]] = []
        self.runs: dict[str, Numbers] = {}
        self.archives: dict[str, int] = {}  # name → weight
        self.losses: dict[str, Any] = {}
        self.is_ready = False
        self.is_stopped = False
        self._held: dict[str, asyncio.Future[None]] = {}
        self._failures: dict[str, Exception] = {}

    async def start(self) -> None:
        self.is_ready = True

    async def stop(self) -> None:
        self.is_stopped = True

    async def call(
        self, word: str, values: dict[str, Any], body: bytes = b"", *, on_release: Callable[[], None] = lambda: None
    ) -> Message:
        self.calls.append((word, values, body))
        await self._pass_gate(word)
        if word == "save":
            weight = self._run(values).weight
            on_release()
            await self._pass_gate("disk")
            self.archives[values["archive"]] = weight
            return Message({"size_bytes": 100 + weight})
        reply: Message = getattr(self, f"_{word}")(values, body)
        return reply

    def words(self) -> list[str]:
        return [word for word, _, _ in self.calls]

    def values_of(self, word: str) -> list[dict[str, Any]]:
        return [values for called, values, _ in self.calls if called == word]

    def hold(self, word: str) -> None:
        """Calls of this word wait from now on; ``disk`` is where a save waits after it has released its run."""
        self._held[word] = asyncio.get_running_loop().create_future()

    def let_go(self, word: str) -> None:
        self._held.pop(word).set_result(None)

    def let_everything_go(self) -> None:
        for word in list(self._held):
            self.let_go(word)

    def fail_next(self, word: str, error: Exception) -> None:
        self._failures[word] = error

    def die(self, reason: str) -> None:
        """What is under way ends as it does when the process is killed, and the next one knows nothing."""
        for held in self._held.values():
            held.set_exception(WorkerLost(reason))
            held.exception()  # it may be that nobody waited
        self._held.clear()
        self.runs.clear()
        self.losses.clear()

    async def _pass_gate(self, word: str) -> None:
        if word in self._held:
            await asyncio.shield(self._held[word])
        if word in self._failures:
            raise self._failures.pop(word)

    def _run(self, values: dict[str, Any]) -> Numbers:
        if (run := self.runs.get(values["run_id"])) is None:
            raise ServerFailure(f"run {values['run_id']!r} is not loaded")
        return run

    def _open_run(self, values: dict[str, Any], body: bytes) -> Message:
        self.runs[values["run_id"]] = Numbers()
        return Message()

    def _close_run(self, values: dict[str, Any], body: bytes) -> Message:
        self.runs.pop(values["run_id"], None)
        return Message()

    def _pass(self, values: dict[str, Any], body: bytes) -> Message:
        run = self._run(values)
        if not body.isdigit():
            raise BadRequest(f"{body!r} is not a number")
        run.gradient += int(body)
        return Message(body=b"loss " + body)

    def _optim_step(self, values: dict[str, Any], body: bytes) -> Message:
        run = self._run(values)
        run.weight += run.gradient
        run.gradient = 0
        return Message({"metrics": {"weight": run.weight}})

    def _snapshot(self, values: dict[str, Any], body: bytes) -> Message:
        self.archives[values["archive"]] = self._run(values).weight
        return Message()

    def _load(self, values: dict[str, Any], body: bytes) -> Message:
        if values["archive"] not in self.archives:
            raise BadRequest("the checkpoint is not in the store any more")
        self._run(values).weight = self.archives[values["archive"]]
        return Message()

    def _add_loss(self, values: dict[str, Any], body: bytes) -> Message:
        self.losses[values["loss_id"]] = values["definition"]
        return Message()

    def _drop_loss(self, values: dict[str, Any], body: bytes) -> Message:
        self.losses.pop(values["loss_id"], None)
        return Message()

    def _sample(self, values: dict[str, Any], body: bytes) -> Message:
        return Message({"tokens": 1}, b"sampled " + body)

    def _cancel(self, values: dict[str, Any], body: bytes) -> Message:
        return Message()

    def _forget(self, values: dict[str, Any], body: bytes) -> Message:
        self.archives.pop(values["archive"], None)
        return Message()


def _is_a_backend(fake: FakeBackend) -> Backend:
    return fake
