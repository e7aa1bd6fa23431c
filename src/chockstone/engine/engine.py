"""The engine: everything that runs behind the API, put together, started and stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from chockstone.catalog import Catalog, RowMissing
from chockstone.catalog.losses import LossRow
from chockstone.engine.archives import ephemeral_name
from chockstone.engine.audit import Audit
from chockstone.engine.backend import Backend
from chockstone.engine.checkpoints import Checkpoints
from chockstone.engine.futures import Futures, Result
from chockstone.engine.leftovers import Leftovers
from chockstone.engine.limits import Limits
from chockstone.engine.policies import Policies
from chockstone.engine.presence import Presence
from chockstone.engine.quotas import Quotas
from chockstone.engine.runs import LiveRun, Runs
from chockstone.engine.sampling import SamplerSource, Sampling
from chockstone.engine.saving import Saving
from chockstone.engine.scrub import Scrub
from chockstone.engine.storage import Storage
from chockstone.engine.storage_rules import StorageRules
from chockstone.engine.sweeper import Sweeper
from chockstone.engine.training import Training
from chockstone.engine.unnamed_samplers import UnnamedSamplers
from chockstone.engine.usage import UsageMeter
from chockstone.wire.failures import RequestError, ServerFailure
from chockstone.wire.paths import TinkerPath

log = logging.getLogger(__name__)
_SILENCE_CHECK_SECONDS: Final = 60.0
_PURGED_AT_START: Final = 100  # archives; the sweeper goes on with the rest
_LOST: Final = (
    "run {run_id!r} is not loaded any more: {reason}. "
    "Resume it with create_training_client_from_state_with_optimizer and its last checkpoint."
)


class Engine:
    def __init__(
        self,
        backend: Backend,
        catalog: Catalog,
        storage: Storage,
        *,
        limits: Limits | None = None,
        rules: StorageRules | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        limits, rules = limits or Limits(), rules or StorageRules()
        self.catalog = catalog
        self.storage = storage
        self.rules = rules
        self.futures = Futures(now=time.monotonic)
        self.runs = Runs(self.futures, limits)
        self.audit = Audit(catalog, now=now)
        self.usage = UsageMeter(catalog, now=now)
        self.presence = Presence(catalog, now=now)
        self.policies = Policies(catalog, rules, now=now)
        quotas = Quotas(catalog, self.policies, now=now)
        self.checkpoints = Checkpoints(catalog, storage, rules, quotas, self.audit, now=now)
        leftovers = Leftovers(catalog, storage)
        self.sweeper = Sweeper(catalog, storage, self.checkpoints, self.policies, leftovers, rules, now=now)
        self.scrub = Scrub(catalog, self.checkpoints, rules, now=now)
        self._saving = Saving(
            backend, catalog, storage, self.checkpoints, quotas, rules, self.usage, self.audit, now=now
        )
        self.training = Training(
            backend, catalog, self.runs, limits, self._saving, self.checkpoints, self.usage, now=now
        )
        self.sampling = Sampling(backend, self.futures, limits)
        self._unnamed = UnnamedSamplers(limits, monotonic=time.monotonic)
        self.checkpoints.on_change = self.sweeper.saw
        self.checkpoints.on_purged = self._forget_purged
        leftovers.on_freed = self._forget_purged
        self.policies.on_change = self.sweeper.look_at_everything
        self.training.on_unnamed = self._unnamed.made
        self.sampling.on_sampled = self._sampled
        self.sampling.on_used = self._unnamed.used
        self.sampling.on_bad_archive = self._found_bad
        self.is_stopping = False
        self.on_session_end: Callable[[str], None] = lambda _: None
        self._backend = backend
        self._limits = limits
        self._now = now
        self._started_at = now()
        self._losses: dict[str, Mapping[str, Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_ready(self) -> bool:
        return self._backend.is_ready

    async def start(self) -> None:
        """Tidy up after the last life, and have the worker start. Returns before it is ready."""
        await self.policies.load()
        await self._saving.recover()
        await self.checkpoints.purge_due(limit=_PURGED_AT_START)
        for run in await self.catalog.runs.list_in_state("active"):
            reason = _LOST.format(run_id=run.run_id, reason="the server was restarted")
            await self.catalog.runs.set_state(run.run_id, "lost", failure=reason)
        await self._backend.start()
        for keeper in (self.presence, self.audit, self.usage, self.sweeper, self.scrub):
            self._in_background(keeper.keep())
        self._in_background(self._keep_tidy())

    async def stop(self) -> None:
        """Take nothing new, finish what is running, fail what only waits, and end the worker."""
        self.is_stopping = True
        self.runs.fail_all("the server is shutting down; submit again once it is back")
        if not self._backend.is_ready:  # nothing runs yet, and what waits for the worker would wait on
            await self._backend.stop()
        await asyncio.gather(*(live.lane.drained() for live in self.runs))
        await self.sampling.drained()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._flush()
        finally:
            await self._backend.stop()

    async def _flush(self) -> None:
        await self.presence.flush()
        await self.audit.flush()
        await self.usage.count_storage()
        await self.usage.flush()

    def worker_lost(self, reason: str) -> None:
        """The worker died and took what it held with it. It starts again by itself."""
        for live in self.runs:
            live.problem = _LOST.format(run_id=live.run_id, reason=reason)
            self.runs.remove(live)
            self._in_background(self.catalog.runs.set_state(live.run_id, "lost", failure=live.problem))
        for loss_id, definition in self._losses.items():
            self._in_background(self._send_loss(loss_id, definition))

    def refuse(self, owner: str, error: RequestError) -> str:
        """A request id whose result is this failure."""
        promise = self.futures.promise(owner)
        self.futures.settle(promise, Result.failed(error))
        return promise.request_id

    def add_loss(self, loss: LossRow) -> str:
        """Have the worker build an uploaded loss; the result names it, or says what is wrong with it."""
        promise = self.futures.promise(loss.owner)

        async def work() -> None:
            try:
                await self._send_loss(loss.loss_id, loss.definition)
                self._losses[loss.loss_id] = loss.definition
                result = Result(orjson.dumps({"loss_id": loss.loss_id, "type": "create_custom_loss"}))
            except RequestError as error:
                result = Result.failed(error)
            except Exception as error:  # told to the client, and logged
                log.exception("loss failed loss=%s", loss.loss_id)
                result = Result.failed(error)
            self.futures.settle(promise, result)

        self._in_background(work())
        return promise.request_id

    async def finish_session(self, session_id: str) -> None:
        """Free what the session held: its runs and losses, and the weights that only its samplers used.

        Returns at once; what its runs were given before is done first. May be told again.
        """
        self.on_session_end(session_id)
        held = [live for live in self.runs if live.session_id == session_id]
        for live in held:
            if not live.is_closing:
                self.futures.disown(self.training.close(live))
        self._in_background(self._free(session_id, held))

    async def end_silent_sessions(self) -> None:
        """Finish the sessions whose clients went without a word, and free what was left of finished ones."""
        await self.presence.flush()
        now = self._now()
        horizon = now - timedelta(seconds=self._limits.silence_seconds)
        unfinished = {session.session_id: session for session in await self.catalog.sessions.list_unfinished()}
        busy = {live.session_id for live in self.runs if not live.lane.is_idle()}
        for session_id in {live.session_id for live in self.runs} - busy - set(unfinished):
            await self.finish_session(session_id)  # the run was made while its session ended
        for session in unfinished.values():
            if session.session_id not in busy and max(session.last_heartbeat_at, self._started_at) < horizon:
                log.info("session ended after silence session=%s", session.session_id)
                minutes = self._limits.silence_seconds / 60
                detail = f"nothing was heard of its client for {minutes:.0f} minutes"
                await self.catalog.sessions.finish(session.session_id, reason="cancelled", detail=detail, now=now)
                await self.finish_session(session.session_id)

    def free_unnamed_samplers(self) -> None:
        """Delete the weights of samplers without a name that runs have left behind."""
        for sampler_id in self._unnamed.take_left_behind():
            log.info("unnamed sampler freed sampler=%s", sampler_id)
            archive = ephemeral_name(sampler_id)
            self.sampling.forget_archive(archive)
            self._in_background(self._forget(archive))

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(_SILENCE_CHECK_SECONDS)
            try:
                self.free_unnamed_samplers()
                await self._saving.end_failed()
                await self.end_silent_sessions()
            except Exception as error:  # noqa: BLE001  # the next time may go better
                log.warning("silent sessions not ended error=%s", error)

    async def _free(self, session_id: str, held: list[LiveRun]) -> None:
        await asyncio.gather(*(live.lane.drained() for live in held))  # they may yet make samplers
        samplers = await self.catalog.samplers.list_by_session(session_id)
        self.sampling.forget_feeds({sampler.sampling_session_id for sampler in samplers})
        self._unnamed.forget([sampler.sampling_session_id for sampler in samplers])
        for sampler in samplers:
            if sampler.archive == ephemeral_name(sampler.sampling_session_id):
                self.sampling.forget_archive(sampler.archive)
                self._in_background(self._forget(sampler.archive))
        if samplers:
            await self.checkpoints.purge_due()  # what was deleted while they used it
        for loss_id in [known for known in self._losses if known.startswith(f"{session_id}:")]:
            del self._losses[loss_id]
            with suppress(ServerFailure):
                await self._backend.call("drop_loss", {"loss_id": loss_id})

    async def _send_loss(self, loss_id: str, definition: Mapping[str, Any]) -> None:
        await self._backend.call("add_loss", {"loss_id": loss_id, "definition": dict(definition)})

    async def _forget(self, archive: str) -> None:
        """The worker may be writing it yet, and then deletes it when it has; one that died has forgotten it."""
        try:
            await self._backend.call("forget", {"archive": archive})
        except ServerFailure:
            await self.storage.delete(archive)

    def _forget_purged(self, archive: str) -> None:
        if self.sampling.forget_archive(archive) and self._backend.is_ready:
            self._in_background(self._free_memory(archive))

    async def _free_memory(self, archive: str) -> None:
        with suppress(RequestError):
            await self._backend.call("forget", {"archive": archive})

    def _sampled(self, source: SamplerSource, prompt_tokens: int, tokens: int) -> None:
        self.usage.sampled(
            source.session_id,
            owner=source.owner,
            base_model=source.base_model,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
        )

    def _found_bad(self, source: SamplerSource, error: RequestError) -> None:
        self._in_background(self._write_down(source, error))

    async def _write_down(self, source: SamplerSource, error: RequestError) -> None:
        """A sampler's archive is not what it should be: tell the checkpoint's owner, if it still is one's."""
        path = (await self.catalog.samplers.get(source.sampling_session_id)).model_path
        if path is None:
            return
        at = TinkerPath.parse(path)
        with suppress(RowMissing):
            row = await self.catalog.checkpoints.get(at.run_id, at.kind.value, at.name, now=self._now())
            if row.archive == source.archive:
                await self.checkpoints.found_bad(row, error)

    def _in_background(self, work: Any) -> None:  # Any: a coroutine of any result
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed error=%s", error, exc_info=error)
