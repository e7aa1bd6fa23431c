"""The end of sessions: parks the runs of silent clients, and frees what a finished session held."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from chockstone.catalog import Catalog, SessionRow
from chockstone.engine.background import BackgroundTasks
from chockstone.engine.config import EngineLimits
from chockstone.engine.custom_losses import CustomLosses
from chockstone.engine.presence import Presence
from chockstone.engine.runs.core import RunCore
from chockstone.engine.runs.run import LiveRuns
from chockstone.engine.samples.sampler_end import SamplerEnd
from chockstone.engine.storage.checkpoints import CheckpointLifecycle

log = logging.getLogger(__name__)
SERVER_SDK: Final = "console"  # version of the SDK in sessions that the server itself opens, and that end with it


class SessionEnd:
    def __init__(
        self,
        catalog: Catalog,
        runs: LiveRuns,
        core: RunCore,
        samplers: SamplerEnd,
        checkpoints: CheckpointLifecycle,
        losses: CustomLosses,
        presence: Presence,
        limits: EngineLimits,
        background: BackgroundTasks,
        *,
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool],
        on_end: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._runs = runs
        self._core = core
        self._samplers = samplers
        self._checkpoints = checkpoints
        self._losses = losses
        self._presence = presence
        self._limits = limits
        self._background = background
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
        self._background.start(self._free(session_id))

    async def end_silent(self) -> None:
        """Park the runs of silent clients, and finish sessions of clients that are gone."""
        await self._presence.flush()
        now = self._now()
        unfinished = {session.session_id: session for session in await self._catalog.sessions.list_unfinished()}
        busy = {run.session_id for run in self._runs if not run.lane.is_idle()}
        for session_id in {run.session_id for run in self._runs} - busy - set(unfinished):
            await self.finish(session_id)  # the run was created while its session ended
        for session in unfinished.values():
            if self._is_left_over(session):
                log.info("session ended that an earlier server had opened session=%s", session.session_id)
                detail = "the server that had opened it ended before it did"
                await self._catalog.sessions.finish(session.session_id, reason="interrupted", detail=detail, now=now)
                await self.finish(session.session_id)
                continue
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
                await self._core.park_session(session.session_id)

    def _is_left_over(self, session: SessionRow) -> bool:
        """Whether a server that was killed opened the session for itself: no client will come back to it."""
        is_older = session.created_at < self._started_at and not self._presence.has_heard(session.session_id)
        return session.sdk_version == SERVER_SDK and is_older

    async def _free(self, session_id: str) -> None:
        await self._core.end_session(session_id)  # its runs may open sampling sessions until then
        samplers = await self._catalog.samplers.list_by_session(session_id)
        self._samplers.free(samplers)
        if samplers:
            await self._checkpoints.purge_due()  # what was deleted while they used it
        await self._losses.drop(session_id)
