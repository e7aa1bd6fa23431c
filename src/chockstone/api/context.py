"""Context: what every route works with, and how it finds the thing a request is about."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Depends, HTTPException, Request

from chockstone.api.admission.refusals import RefusedKey, RefusedKeys
from chockstone.api.config import ServerConfig
from chockstone.api.downloads.signing import Signer
from chockstone.api.lookup import Lookup, not_there, one_absence, owned
from chockstone.api.loop_health import LoopHealth
from chockstone.api.model_descriptions import ModelDescription
from chockstone.api.polls import Polls
from chockstone.api.users import Caller, UserDirectory
from chockstone.catalog import Catalog, CheckpointRow, RowMissing, RunRow, SamplerRow, SessionRow
from chockstone.engine.engine import Engine
from chockstone.engine.futures import Promise
from chockstone.engine.runs.operations import run_of
from chockstone.engine.runs.run import Run
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.checkpoints import Latest
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.model_names import ModelName
from chockstone.wire.paths import Kind, TinkerPath, check_name

_PAGE: Final = 1000


class RunGone(ServerFailure):
    """The run was there, and is not any more. ``errors`` tells it as a failed future, which clients do not retry."""

    def __init__(self, message: str, *, run_id: str, owner: str) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.owner = owner


class SessionFinished(HTTPException):
    def __init__(self, session_id: str) -> None:
        super().__init__(410, f"session {session_id!r} is finished; make a new client")


class SamplerSources:
    """What each sampling session samples from, remembered while its session lasts."""

    def __init__(self) -> None:
        self._known: dict[str, SamplerSource] = {}  # by sampling session

    def get(self, sampling_session_id: str) -> SamplerSource | None:
        return self._known.get(sampling_session_id)

    def add(self, source: SamplerSource) -> None:
        self._known[source.sampling_session_id] = source

    def forget_session(self, session_id: str) -> None:
        """The session is finished: its samplers are looked up again."""
        for sampling_session_id in [known for known in self._known if known.startswith(f"{session_id}:")]:
            del self._known[sampling_session_id]


@dataclass(slots=True)
class Context(Lookup):
    config: ServerConfig
    engine: Engine
    users: UserDirectory
    models: dict[str, ModelDescription]
    sources: SamplerSources  # the engine is to tell it of sessions that end
    signer: Signer = field(default_factory=lambda: Signer(secrets.token_bytes(32)))  # of URLs that need no key
    polls: Polls = field(default_factory=Polls)
    loop_health: LoopHealth = field(default_factory=LoopHealth)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    refused_keys: RefusedKeys = field(init=False)

    def __post_init__(self) -> None:
        self.refused_keys = RefusedKeys(self._audit_refused_key)

    @property
    def catalog(self) -> Catalog:
        return self.engine.catalog

    @property
    def is_open(self) -> bool:
        """Whether there are no keys, so that any will do."""
        return self.users.is_open

    async def identify(self, credential: str | None) -> Caller:
        """Raises HTTPException 401 for a credential that is nobody's."""
        return self.users.identify(credential)

    def last_request(self, row: RunRow) -> datetime:
        """The catalog hears of requests later."""
        return self.engine.presence.last_request(row.run_id) or row.last_request_at

    def is_admin(self, caller: Caller) -> bool:
        """Whether the caller may see and change what is everyone's. Alone on a machine, one may."""
        return self.users.is_open or caller.user_id in self.config.admins

    def scope_of(self, caller: Caller) -> str | None:
        """Whose things a caller sees in reports: their own, or everyone's."""
        return None if self.is_admin(caller) else caller.user_id

    def base_url(self, request: Request) -> str:
        """How clients reach this server, without a slash at the end."""
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
        """A session that may still be given work."""
        self.refuse_when_stopping()
        row = await self.session(session_id, caller)
        if row.is_finished:
            raise SessionFinished(session_id)
        return row

    async def run(self, run_id: str, caller: Caller) -> Run:
        """A run that may be given work; a parked one is brought back.

        Raises RunGone when it was lost or unloaded, SessionFinished when its session is.
        """
        self.refuse_when_stopping()
        live = self.engine.runs.get(run_id)
        if live is None:
            await self._run_of_open_session(run_id, caller)  # nobody else's are brought back, and none that is over
            try:
                live = await self.engine.wake(run_id)
            except ServerFailure as error:
                raise RunGone(str(error), run_id=run_id, owner=caller.user_id) from error
        if live is None or live.owner != caller.user_id or live.is_closing:
            row = await self._run_of_open_session(run_id, caller)
            message = row.failure or f"run {run_id!r} was unloaded; resume it from a checkpoint"
            raise RunGone(message, run_id=run_id, owner=caller.user_id)
        self.engine.presence.saw_run(run_id)
        self.engine.presence.saw_session(live.session_id)
        return live

    async def _run_of_open_session(self, run_id: str, caller: Caller) -> RunRow:
        row = await self.run_row(run_id, caller)
        if (await self.catalog.sessions.get(row.session_id)).is_finished:
            raise SessionFinished(row.session_id)
        return row

    async def promise(self, request_id: str, caller: Caller) -> Promise | None:
        """Of a request that the caller made, perhaps to an earlier server. Nobody else's run is brought back for it."""
        promise = self.engine.futures.get(request_id)
        if promise is None and await self.may_be_of(request_id, caller):
            self.refuse_when_stopping()  # the next server will know
            promise = await self.engine.find_promise(request_id)
        return promise if promise is not None and promise.owner == caller.user_id else None

    async def why_lost(self, request_id: str, caller: Caller) -> str | None:
        """Why the run that the request was made to cannot go on; None if it is not lost, or not the caller's."""
        run_id = run_of(request_id)
        if run_id is None or self.engine.runs.get(run_id) is not None:
            return None
        with suppress(RowMissing):
            row = await self.catalog.runs.get(run_id)
            return row.failure if row.owner == caller.user_id and row.state == "lost" else None
        return None

    async def may_be_of(self, request_id: str, caller: Caller) -> bool:
        """Ids that outlive a server begin with their session."""
        try:
            return (await self.catalog.sessions.get(request_id.partition(":")[0])).owner == caller.user_id
        except RowMissing:
            return True

    async def runs_of(self, owner: str | None, *, project_id: str | None = None) -> AsyncIterator[RunRow]:
        """All there are, newest first; everyone's when ``owner`` is None."""
        offset = 0
        while True:
            page = await self.catalog.runs.list(owner, limit=_PAGE, offset=offset, project_id=project_id)
            for row in page.rows:
                yield row
            offset += len(page.rows)
            if len(page.rows) < _PAGE:
                return

    async def checkpoint(self, path: str, caller: Caller, *, kinds: tuple[Kind, ...] = tuple(Kind)) -> Latest:
        """A checkpoint of one of these kinds that the caller may read, and that can be read as far as is known.

        ``latest`` is resolved; what was passed over on the way is told with it.
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
        """One that the caller may change. BadRequest for one that is only being written yet."""
        try:
            row = await self.catalog.checkpoints.get(path.run_id, path.kind.value, path.name, now=self.now())
        except RowMissing as error:
            absence = await self.absence(path, caller, error)
            if absence is error:
                check_name(path.name)  # ``latest`` is none
                await self.refuse_while_written(path)
            raise absence from None
        if row.owner != caller.user_id:
            raise not_there(path)
        return row

    async def refuse_while_written(self, path: TinkerPath) -> None:
        if await self.catalog.checkpoints.is_pending(path.run_id, path.kind.value, path.name):
            raise BadRequest(f"checkpoint '{path}' is being written; wait for its save to end")

    def identify_reader(self, token: str | None, caller: Caller) -> Caller:
        """As whom weights are read: as their owner, when the owner's token came along."""
        if token is None:
            return caller
        try:
            return self.users.identify(token)
        except HTTPException:
            raise HTTPException(403, "the weights access token is not a credential of this server") from None

    def audit_read(self, row: CheckpointRow, caller: Caller, *, purpose: str) -> None:
        """It stands in its owner's audit, whoever read it."""
        self.engine.audit(
            "checkpoint_read",
            owner=row.owner,
            run_id=row.run_id,
            path=row.path,
            purpose=purpose,
            details={"by": caller.user_id},
        )

    def _audit_refused_key(self, refused: RefusedKey) -> None:
        """For admins: it is in nobody's own audit."""
        details = {"client": refused.source, "key_sha256": refused.key_digest, "count": refused.count}
        self.engine.audit("key_refused", owner="", details=details)

    async def _latest(self, path: TinkerPath, caller: Caller) -> Latest:
        try:
            return await self.engine.checkpoints.latest(
                path.run_id, path.kind.value, allow=lambda row: self.may_read(row, caller)
            )
        except RowMissing as error:
            raise await self.absence(path, caller, error) from None

    async def sampler(self, sampling_session_id: str, caller: Caller) -> SamplerRow:
        with one_absence(f"sampling session {sampling_session_id!r} is not yours or not there"):
            return owned(await self.catalog.samplers.get(sampling_session_id), caller)

    async def source(self, sampling_session_id: str, caller: Caller, *, for_work: bool = False) -> SamplerSource:
        """What a sampling session samples from; looked up once while its session lasts. Then no work is taken."""
        source = self.sources.get(sampling_session_id)
        if source is None:
            row = await self.sampler(sampling_session_id, caller)
            source = SamplerSource(sampling_session_id, row.owner, row.base_model, row.archive, row.seal)
            if not (await self.catalog.sessions.get(row.session_id)).is_finished:
                self.sources.add(source)
            elif for_work:
                raise SessionFinished(row.session_id)
        if source.owner != caller.user_id:
            raise RowMissing(f"sampling session {sampling_session_id!r} is not yours or not there")
        if for_work:
            self.engine.presence.saw_session(sampling_session_id.partition(":")[0])
        return source


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextDep = Annotated[Context, Depends(_context)]
