"""Context: the engine and the services that routes use, and how they find what a request names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Depends, HTTPException, Request

from chockstone.api.admission.refusals import RefusedKey, RefusedKeys
from chockstone.api.config import ServerConfig
from chockstone.api.event_streams import EventStreams
from chockstone.api.lookup import Lookup, not_there, one_absence, owned
from chockstone.api.loop_health import LoopHealth
from chockstone.api.model_descriptions import ModelDescription
from chockstone.api.polls import Polls
from chockstone.api.sampler_sources import SamplerSources
from chockstone.api.signed_urls import SignedUrls
from chockstone.api.status.server_status import ServerStatus
from chockstone.api.users import Caller, UserDirectory
from chockstone.catalog import Catalog, CheckpointRow, RowMissing, RunProgress, RunRow, SamplerRow, SessionRow
from chockstone.engine.engine import Engine
from chockstone.engine.futures import Promise
from chockstone.engine.runs.operations import run_of
from chockstone.engine.runs.run import Run
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.verification import Latest
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.model_names import ModelName
from chockstone.wire.paths import Kind, TinkerPath, check_name

_PAGE: Final = 1000


class RunGone(ServerFailure):
    """The run existed and is gone. ``errors`` answers with a failed future, which clients do not retry."""

    def __init__(self, message: str, *, run_id: str, owner: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.owner = owner


class SessionFinished(HTTPException):
    def __init__(self, session_id: str) -> None:
        super().__init__(410, f"session {session_id!r} is finished; make a new client")


@dataclass(slots=True)
class Context(Lookup):
    config: ServerConfig
    engine: Engine
    users: UserDirectory
    models: dict[str, ModelDescription]
    signed_urls: SignedUrls
    sampler_sources: SamplerSources
    refused_keys: RefusedKeys
    polls: Polls = field(default_factory=Polls)
    event_streams: EventStreams = field(default_factory=EventStreams)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    loop_health: LoopHealth = field(init=False)
    status: ServerStatus = field(init=False)

    def __post_init__(self) -> None:
        self.loop_health = LoopHealth(self.engine.instruments)
        self.status = ServerStatus(self.engine, self.config, self.models, now=self.now)

    @property
    def catalog(self) -> Catalog:
        return self.engine.catalog

    @property
    def instruments(self) -> Instruments:
        return self.engine.instruments

    @property
    def is_open(self) -> bool:
        """Whether the server has no keys, so that it accepts any."""
        return self.users.is_open

    async def identify(self, credential: str | None) -> Caller:
        """Raises HTTPException 401 for an unknown credential."""
        return self.users.identify(credential)

    def last_request(self, row: RunRow) -> datetime:
        """From the engine: the catalog is updated later."""
        return self.engine.presence.last_request(row.run_id) or row.last_request_at

    def progress(self, row: RunRow) -> RunProgress:
        """From the live run: the catalog is updated later."""
        live = self.engine.runs.get(row.run_id)
        known = None if live is None else live.progress
        return known or row.progress

    def is_admin(self, caller: Caller) -> bool:
        """Whether the caller may see and change what belongs to all users. On a server without keys, everyone may."""
        return self.users.is_open or caller.user_id in self.config.admins

    def scope_of(self, caller: Caller) -> str | None:
        """The owner whose rows a caller sees in reports; None for an admin: all users."""
        return None if self.is_admin(caller) else caller.user_id

    def require_admin(self, caller: Caller, what: str) -> None:
        """Raises HTTPException 403. ``what`` only admins may do."""
        if not self.is_admin(caller):
            raise HTTPException(403, f"only admins of this server may {what}; ask one of them")

    def scope(self, caller: Caller, owner: str | None) -> str | None:
        """The owner whose rows a caller sees who asks for those of ``owner``; None: all users.

        Raises HTTPException 403 for a user who is no admin and asks for another's.
        """
        if owner is not None and owner != caller.user_id:
            self.require_admin(caller, "see what belongs to other users")
        return owner or self.scope_of(caller)

    def base_url(self, request: Request) -> str:
        """The URL that clients use, without a slash at the end."""
        return (self.config.public_url or str(request.base_url)).rstrip("/")

    def refuse_when_stopping(self) -> None:
        if self.engine.is_stopping:
            raise HTTPException(503, "the server is shutting down", {"Retry-After": "5"})

    def model(self, name: str) -> ModelDescription:
        """The served model that a client means by ``name``, which may end in ``:peft:N``."""
        if (model := self.models.get(ModelName.parse(name).base)) is None:
            raise BadRequest(f"base model {name!r} is not served here; there are {', '.join(sorted(self.models))}")
        return model

    async def open_session(self, session_id: str, caller: Caller) -> SessionRow:
        """A session that accepts work. Raises SessionFinished."""
        self.refuse_when_stopping()
        row = await self.session(session_id, caller)
        if row.is_finished:
            raise SessionFinished(session_id)
        return row

    async def run(self, run_id: str, caller: Caller) -> Run:
        """A run that accepts work. A parked run is woken.

        Raises RunGone when it was lost or unloaded, SessionFinished when its session is.
        """
        self.refuse_when_stopping()
        run = self.engine.runs.get(run_id)
        if run is None:
            await self._run_of_open_session(run_id, caller)  # wakes no other user's run, and none of a finished session
            try:
                run = await self.engine.wake(run_id)
            except ServerFailure as error:
                raise RunGone(str(error), run_id=run_id, owner=caller.user_id) from error
        if run is None or run.owner != caller.user_id or run.is_closing:
            row = await self._run_of_open_session(run_id, caller)
            message = row.failure or f"run {run_id!r} was unloaded; resume it from a checkpoint"
            raise RunGone(message, run_id=run_id, owner=caller.user_id)
        self.engine.presence.saw_run(run_id)
        self.engine.presence.saw_session(run.session_id)
        return run

    async def _run_of_open_session(self, run_id: str, caller: Caller) -> RunRow:
        row = await self.run_row(run_id, caller)
        if (await self.catalog.sessions.get(row.session_id)).is_finished:
            raise SessionFinished(row.session_id)
        return row

    async def promise(self, request_id: str, caller: Caller) -> Promise | None:
        """The promise of a request of the caller, perhaps to an earlier server. Wakes no other user's run."""
        promise = self.engine.futures.get(request_id)
        if promise is None and await self.may_be_of(request_id, caller):
            self.refuse_when_stopping()  # the next server will know
            promise = await self.engine.find_promise(request_id)
        return promise if promise is not None and promise.owner == caller.user_id else None

    async def why_lost(self, request_id: str, caller: Caller) -> str | None:
        """Why the run of the request is lost; None if it is not lost, or not the caller's."""
        run_id = run_of(request_id)
        if run_id is None or self.engine.runs.get(run_id) is not None:
            return None
        with suppress(RowMissing):
            row = await self.catalog.runs.get(run_id)
            return row.failure if row.owner == caller.user_id and row.state == "lost" else None
        return None

    async def may_be_of(self, request_id: str, caller: Caller) -> bool:
        """Whether the request may be the caller's. Ids that outlive a server begin with their session's id."""
        try:
            return (await self.catalog.sessions.get(request_id.partition(":")[0])).owner == caller.user_id
        except RowMissing:
            return True

    async def runs_of(self, owner: str | None, *, project_id: str | None = None) -> AsyncIterator[RunRow]:
        """All runs, newest first; of all users when ``owner`` is None."""
        offset = 0
        while True:
            page = await self.catalog.runs.list(owner, limit=_PAGE, offset=offset, project_id=project_id)
            for row in page.rows:
                yield row
            offset += len(page.rows)
            if len(page.rows) < _PAGE:
                return

    async def checkpoint(self, path: str, caller: Caller, *, kinds: tuple[Kind, ...] = tuple(Kind)) -> Latest:
        """A checkpoint of one of these kinds that the caller may read and that is not known to be damaged.

        ``latest`` is resolved; the result has the newer checkpoints that it skipped.
        """
        parsed = TinkerPath.parse(path)
        if parsed.kind not in kinds:
            raise BadRequest(f"{path!r} is of kind {parsed.kind}; this takes {' or '.join(kinds)}")
        if parsed.is_latest:
            return await self._latest(parsed, caller)
        row = await self.readable(parsed, caller)
        if row.state == "damaged":
            raise BadRequest(f"checkpoint {path!r} is damaged: {row.damage}", code="damaged")
        return Latest(row, ())

    async def own_checkpoint(self, path: TinkerPath, caller: Caller) -> CheckpointRow:
        """A checkpoint that the caller may change. BadRequest while its first save is being written."""
        try:
            row = await self.catalog.checkpoints.get(path.run_id, path.kind.value, path.name, now=self.now())
        except RowMissing as error:
            absence = await self.absence(path, caller, error)
            if absence is error:
                check_name(path.name)  # refuses ``latest``
                await self.refuse_while_written(path)
            raise absence from None
        if row.owner != caller.user_id:
            raise not_there(path)
        return row

    async def refuse_while_written(self, path: TinkerPath) -> None:
        if await self.catalog.checkpoints.is_pending(path.run_id, path.kind.value, path.name):
            raise BadRequest(f"checkpoint '{path}' is being written; wait for its save to end")

    def identify_reader(self, token: str | None, caller: Caller) -> Caller:
        """The user as whom weights are read: the owner of ``token``, or else the caller."""
        if token is None:
            return caller
        try:
            return self.users.identify(token)
        except HTTPException:
            raise HTTPException(403, "the weights access token is not a credential of this server") from None

    def audit_read(self, row: CheckpointRow, caller: Caller, *, purpose: str) -> None:
        """Record the read in the audit of the checkpoint's owner."""
        self.engine.audit(
            "checkpoint_read",
            owner=row.owner,
            run_id=row.run_id,
            path=row.path,
            purpose=purpose,
            details={"by": caller.user_id},
        )

    async def delete_conversation(self, caller: Caller, conversation_id: str) -> None:
        """Delete a conversation of the caller, on record in their audit. Raises ConversationMissing."""
        self.refuse_when_stopping()
        await self.engine.conversations.delete(caller.user_id, conversation_id)
        details = {"by": caller.user_id, "conversation_id": conversation_id}
        self.engine.audit("conversation_deleted", owner=caller.user_id, details=details)

    async def _latest(self, path: TinkerPath, caller: Caller) -> Latest:
        try:
            return await self.engine.verifier.latest(
                path.run_id, path.kind.value, allow=lambda row: self.may_read(row, caller)
            )
        except RowMissing as error:
            raise await self.absence(path, caller, error) from None

    async def sampler(self, sampling_session_id: str, caller: Caller) -> SamplerRow:
        with one_absence(f"sampling session {sampling_session_id!r} is not yours or not there"):
            return owned(await self.catalog.samplers.get(sampling_session_id), caller)

    async def source(self, sampling_session_id: str, caller: Caller, *, for_work: bool = False) -> SamplerSource:
        """What a sampling session samples from. ``for_work``: raises SessionFinished when its session is finished."""
        source = self.sampler_sources.get(sampling_session_id)
        if source is None:
            row = await self.sampler(sampling_session_id, caller)
            source = SamplerSource(sampling_session_id, row.owner, row.base_model, row.archive, row.seal)
            if not (await self.catalog.sessions.get(row.session_id)).is_finished:
                self.sampler_sources.add(sampling_session_id, source)
            elif for_work:
                raise SessionFinished(row.session_id)
        if source.owner != caller.user_id:
            raise RowMissing(f"sampling session {sampling_session_id!r} is not yours or not there")
        if for_work:
            self.engine.presence.saw_session(sampling_session_id.partition(":")[0])
        return source


def audited_refusals(engine: Engine) -> RefusedKeys:
    """Refused keys, recorded in the audit that admins see. They are in no user's own audit."""

    def audit(refused: RefusedKey) -> None:
        details = {"client": refused.source, "key_sha256": refused.key_digest, "count": refused.count}
        engine.audit("key_refused", owner="", details=details)

    return RefusedKeys(audit)


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextDep = Annotated[Context, Depends(_context)]
