"""Custom losses: the graphs that clients uploaded, as far as the present worker knows them.

The catalog keeps them; a worker that starts anew is told those of a session when a run of it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import orjson

from chockstone.backends.local import WorkerLost
from chockstone.catalog import Catalog
from chockstone.catalog.losses import LossRow
from chockstone.engine.backend import Backend
from chockstone.engine.futures import Futures, Promise, Result
from chockstone.wire.failures import RequestError, ServerFailure

log = logging.getLogger(__name__)


class CustomLosses:
    def __init__(self, backend: Backend, catalog: Catalog, futures: Futures) -> None:
        self._backend = backend
        self._catalog = catalog
        self._futures = futures
        self._sent: dict[str, int] = {}  # loss → the worker that has it
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by loss

    def add(self, loss: LossRow) -> str:
        """Have the worker build it; the result, under the loss's own id, says what is wrong with it if something is."""
        if self._futures.get(loss.loss_id) is None:
            promise = self._futures.promise(loss.owner, loss.loss_id)
            task = asyncio.create_task(self._build(loss, promise))
            self._tasks[loss.loss_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(loss.loss_id, None))
        return loss.loss_id

    async def send(self, session_id: str) -> None:
        """Those of the session that the present worker does not have. Raises WorkerLost."""
        generation = self._backend.generation
        for loss in await self._catalog.losses.list_by_session(session_id):
            if self._sent.get(loss.loss_id) != generation:
                try:
                    await self._send(loss, generation)
                except WorkerLost:
                    raise
                except RequestError:
                    continue  # one that cannot be built was refused before

    async def drop(self, session_id: str) -> None:
        """The session is over."""
        for loss_id in [known for known in self._sent if known.startswith(f"{session_id}:")]:
            del self._sent[loss_id]
            with suppress(ServerFailure):
                await self._backend.call("drop_loss", {"loss_id": loss_id})

    async def drained(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _build(self, loss: LossRow, promise: Promise) -> None:
        try:
            await self._backend.ready()
            await self._send(loss, self._backend.generation)
            result = Result(orjson.dumps({"loss_id": loss.loss_id, "type": "create_custom_loss"}))
        except RequestError as error:
            result = Result.failed(error)
        except Exception as error:  # told to the client, and logged
            log.exception("loss failed loss=%s", loss.loss_id)
            result = Result.failed(error)
        self._futures.settle(promise, result)

    async def _send(self, loss: LossRow, generation: int) -> None:
        values = {"loss_id": loss.loss_id, "definition": dict(loss.definition)}
        await self._backend.call("add_loss", values, generation=generation)
        self._sent[loss.loss_id] = generation
