"""The end of sessions: parks the runs of silent clients, and frees what a finished session held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from chockstone.backends.protocol import Worker
from chockstone.catalog import Catalog
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.config import EngineLimits
from chockstone.engine.custom_losses import CustomLosses
from chockstone.engine.futures import Futures
from chockstone.engine.presence import Presence
from chockstone.engine.runs.registry import RunRegistry
from chockstone.engine.runs.run import LiveRuns
from chockstone.engine.runs.training import TrainingRequests
from chockstone.engine.runs.unloading import RunUnloader
from chockstone.engine.samples.anonymous_samplers import AnonymousSamplers
from chockstone.engine.samples.sampling import Sampling
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.wire.failures import ServerFailure

log = logging.getLogger(__name__)


class SessionEnd:
    def __init__(
        self,
        worker: Worker,
        catalog: Catalog,
        storage: ArchiveStorage,
        runs: LiveRuns,
        registry: RunRegistry,
        unloader: RunUnloader,
        training: TrainingRequests,
        futures: Futures,
        sampling: Sampling,
        anonymous: AnonymousSamplers,
        checkpoints: CheckpointLifecycle,
        losses: CustomLosses,
        presence: Presence,
        limits: EngineLimits,
        *,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool],
        on_end: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._catalog = catalog
        self._storage = storage
        self._runs = runs
        self._registry = registry
        self._unloader = unloader
        self._training = training
        self._futures = futures
        self._sampling = sampling
        self._anonymous = anonymous
        self._checkpoints = checkpoints
        self._losses = losses
        self._presence = presence
        self._limits = limits
        self._in_background = in_background
        self._now = now
        self._trusts_ages = trusts_ages
        self._on_end = on_end
        self._started_at = now()

    async def finish(self, session_id: str) -> None:
        """Free the session's runs and losses, and the weights that only its samplers used.

        Returns at once; the operations of its runs end first. May be called again.
        """
        self._on_end(session_id)
        self._presence.forget_session(session_id)
        self._in_background(self._free(session_id))

    async def end_silent(self) -> None:
        """Park the runs of silent clients, and finish sessions that were silent for very long."""
        await self._presence.flush()
        now = self._now()
        unfinished = {session.session_id: session for session in await self._catalog.sessions.list_unfinished()}
        busy = {run.session_id for run in self._runs if not run.lane.is_idle()}
        for session_id in {run.session_id for run in self._runs} - busy - set(unfinished):
            await self.finish(session_id)  # the run was created while its session ended
        for session in unfinished.values():
            if session.session_id in busy:
                continue
            silent = min(
                (now - max(session.last_heartbeat_at, self._started_at)).total_seconds(),
                self._presence.silent_seconds(session.session_id),
            )
            if silent >= self._limits.forget_seconds and self._trusts_ages():
                log.info("session ended after silence session=%s", session.session_id)
                detail = f"nothing was heard of its client for {silent / 86400:.0f} days"
                await self._catalog.sessions.finish(session.session_id, reason="cancelled", detail=detail, now=now)
                await self.finish(session.session_id)
            elif silent >= self._limits.park_seconds:
                for run in self._runs:
                    if run.session_id == session.session_id:
                        await self._registry.park(run)

    def free_anonymous_samplers(self) -> None:
        """Delete the weights of anonymous samplers that newer ones have superseded."""
        for sampler_id in self._anonymous.take_left_behind():
            log.info("anonymous sampler freed sampler=%s", sampler_id)
            self._free_archive(ephemeral_name(sampler_id))

    async def _free(self, session_id: str) -> None:
        for row in await self._catalog.runs.list_by_session(session_id):
            run = self._runs.get(row.run_id)
            if run is None and row.state == "parked":
                await self._unloader.unload(row.run_id)
            elif run is not None and run.is_stuck:
                await self._unloader.discard(run)
            elif run is not None and not run.is_closing:
                self._futures.disown(await self._training.close(run))
        held = [run for run in self._runs if run.session_id == session_id]
        await asyncio.gather(*(run.lane.drained() for run in held))  # they may still open sampling sessions
        samplers = await self._catalog.samplers.list_by_session(session_id)
        self._sampling.forget_feeds({sampler.sampling_session_id for sampler in samplers})
        self._anonymous.forget([sampler.sampling_session_id for sampler in samplers])
        for sampler in samplers:
            if sampler.archive == ephemeral_name(sampler.sampling_session_id):
                self._free_archive(sampler.archive)
        if samplers:
            await self._checkpoints.purge_due()  # what was deleted while they used it
        await self._losses.drop(session_id)

    def _free_archive(self, archive: str) -> None:
        self._sampling.forget_archive(archive)
        self._in_background(self._delete(archive))

    async def _delete(self, archive: str) -> None:
        """The worker deletes it after a write in progress; if the worker died, it is deleted here."""
        try:
            try:
                await self._worker.forget(archive)
            except ServerFailure:
                await self._storage.delete(archive)
        except StoreError as error:
            log.warning("archive of a sampler not deleted yet archive=%s error=%s", archive, error)
