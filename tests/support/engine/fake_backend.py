"""A backend with numbers for tensors: everything it is told happens at once, unless a test holds it back.

Its archives are real ones in a real store, small as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chockstone.backends.channel import Message
from chockstone.backends.supervision.local import WorkerLost
from chockstone.checkpoints import Admission, Archive, Checkpointer, SavedCheckpoint, Store, load_state
from chockstone.checkpoints.errors import (
    AdmissionRefused,
    CheckpointMissing,
    DamagedArchive,
    StoreDenied,
    StoreFull,
    StoreUnreachable,
)
from chockstone.engine.backend import Backend
from chockstone.wire.failures import BadRequest, ServerFailure


@dataclass
class Numbers:
    """A run: a pass adds its body to the gradient, a step adds the gradient to the weight."""

    weight: int = 0
    gradient: int = 0
    steps: int = field(default=0, compare=False)


class FakeBackend:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._checkpointer = Checkpointer(store)
        self.calls: list[tuple[str, dict[str, Any], bytes]] = []
        self.runs: dict[str, Numbers] = {}
        self.losses: dict[str, Any] = {}
        self.custom: str | None = None  # the loss that every pass needs
        self.is_ready = False
        self.trouble: str | None = None
        self.is_stopped = False
        self.is_slow = False  # it does not become ready by itself
        self.generation = 1
        self.environment: dict[str, Any] = {"device": "none", "models": {"tiny": "", "other": ""}}
        self.poison: bytes | None = None  # a pass of this body kills the worker
        self.on_death: Callable[[str], None] = lambda _: None
        self.seconds = 0.0  # that a pass, a step or a copy is said to take
        self._reason = ""
        self._held: dict[str, asyncio.Future[None]] = {}
        self._failures: dict[str, Exception] = {}

    async def start(self) -> None:
        self.is_ready = not self.is_slow

    async def stop(self) -> None:
        self.is_stopped = True

    async def ready(self) -> None:
        while not self.is_ready:
            if self.is_stopped:
                raise WorkerLost("the worker was stopped")
            await asyncio.sleep(0.001)

    async def call(
        self,
        word: str,
        values: dict[str, Any],
        body: bytes = b"",
        *,
        on_release: Callable[[], None] = lambda: None,
        generation: int | None = None,
    ) -> Message:
        if generation not in (None, self.generation):
            raise WorkerLost(f"the worker of generation {generation} is gone", code="unsent")
        began = self.generation
        self.calls.append((word, values, body))
        await self._pass_gate(word)
        if word == "pass":
            await self._pass_gate(f"pass {body.decode(errors='replace')}")
            if body == self.poison:
                self.die("signal 11")
                raise WorkerLost("signal 11")
        try:
            return await self._do(word, values, body, on_release)
        finally:
            if self.generation != began:
                raise WorkerLost(self._reason)

    async def _do(self, word: str, values: dict[str, Any], body: bytes, on_release: Callable[[], None]) -> Message:
        if word == "save":
            state = copy(self._run(values))
            on_release()
            await self._pass_gate("disk")
            saved = await asyncio.to_thread(self._write, values, state)
            return Message({"size_bytes": saved.size_bytes, "seal": saved.seal, "seconds": self.seconds})
        if word == "snapshot":
            state = copy(self._run(values))
            if values["archive"] not in {entry.name for entry in self.store.entries()}:
                await asyncio.to_thread(self._write, {"kind": "sampler_weights", **values}, state)
            return Message()
        if word == "load":
            state = await asyncio.to_thread(self._read, values["archive"], values.get("seal"))
            self._load(self._run(values), state, values)
            return Message()
        if word == "forget":
            await asyncio.to_thread(self.store.delete, values["archive"])
            return Message()
        reply: Message = getattr(self, f"_{word}")(values, body)
        return reply

    @property
    def archives(self) -> dict[str, int]:
        """The weight in each archive of the store, without those that are deleted while they are read."""
        weights = {}
        for entry in self.store.entries():
            with suppress(BadRequest):
                weights[entry.name] = self._read(entry.name).weight
        return weights

    def words(self) -> list[str]:
        return [word for word, _, _ in self.calls]

    def values_of(self, word: str) -> list[dict[str, Any]]:
        return [values for called, values, _ in self.calls if called == word]

    def hold(self, word: str) -> None:
        """Calls of this word wait from now on; ``disk`` is where a save waits after it has released its run.

        Of passes, those of one body can be held: ``pass 5``.
        """
        self._held[word] = asyncio.get_running_loop().create_future()

    def let_go(self, word: str) -> None:
        self._held.pop(word).set_result(None)

    def let_everything_go(self) -> None:
        for word in list(self._held):
            self.let_go(word)

    def fail_next(self, word: str, error: Exception) -> None:
        self._failures[word] = error

    def die(self, reason: str) -> None:
        """What is under way ends as it does when the process is killed; the next one, ready at once, knows nothing."""
        self.generation += 1
        self._reason = reason
        for held in self._held.values():
            held.set_exception(WorkerLost(reason))
            held.exception()  # it may be that nobody waited
        self._held.clear()
        self.runs.clear()
        self.losses.clear()
        self.on_death(reason)

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
        if self.custom not in (None, *self.losses):
            raise BadRequest(f"there is no custom loss {self.custom!r}")
        if not body.isdigit():
            raise BadRequest(f"{body!r} is not a number")
        run.gradient += int(body)
        return Message({"tokens": int(body), "seconds": self.seconds}, b"loss " + body)

    def _optim_step(self, values: dict[str, Any], body: bytes) -> Message:
        run = self._run(values)
        run.weight += run.gradient
        run.gradient = 0
        run.steps += 1
        metrics = {"weight": run.weight, "steps": float(run.steps)}
        return Message({"metrics": metrics, "seconds": self.seconds})

    def _add_loss(self, values: dict[str, Any], body: bytes) -> Message:
        self.losses[values["loss_id"]] = values["definition"]
        return Message()

    def _drop_loss(self, values: dict[str, Any], body: bytes) -> Message:
        self.losses.pop(values["loss_id"], None)
        return Message()

    def _sample(self, values: dict[str, Any], body: bytes) -> Message:
        return Message({"tokens": 1, "prompt_tokens": len(body)}, b"sampled " + body)

    def _cancel(self, values: dict[str, Any], body: bytes) -> Message:
        return Message()

    @staticmethod
    def _load(run: Numbers, saved: Numbers, values: Mapping[str, Any]) -> None:
        with_optimizer = values.get("with_optimizer", False)
        run.weight = saved.weight
        run.gradient = saved.gradient if with_optimizer else 0
        run.steps = saved.steps if with_optimizer else 0

    def _write(self, values: Mapping[str, Any], state: Numbers) -> SavedCheckpoint:
        try:
            handle = self._checkpointer.save(
                {"run": {"weight": np.array([state.weight]), "gradient": state.gradient, "steps": state.steps}},
                name=values["archive"],
                kind=values["kind"],
                metadata=values.get("metadata", {}),
                ttl_seconds=values.get("ttl_seconds"),
                overwrite=True,
                admission=Admission(
                    allowance_bytes=values.get("allowance_bytes"), reserve_bytes=values.get("reserve_bytes", 0)
                ),
            )
            return handle.result()
        except (AdmissionRefused, StoreFull) as error:
            raise BadRequest(str(error), code="no_room") from error

    def _read(self, archive: str, seal: str | None = None) -> Numbers:
        try:
            with Archive(self.store.open(archive), seal=seal) as opened:
                run = load_state(opened)["run"]
                return Numbers(int(run["weight"][0]), run.get("gradient", 0), run.get("steps", 0))
        except CheckpointMissing as error:
            raise BadRequest(f"the checkpoint is not in the store any more: {error}", code="missing") from error
        except DamagedArchive as error:
            raise ServerFailure(f"the checkpoint cannot be loaded: {error}", code="damaged") from error
        except StoreDenied as error:
            raise ServerFailure(f"the checkpoint cannot be loaded: {error}", code="denied") from error
        except StoreUnreachable as error:
            raise ServerFailure(f"the checkpoint cannot be loaded: {error}", code="unreachable") from error


def _is_a_backend(fake: FakeBackend) -> Backend:
    return fake
