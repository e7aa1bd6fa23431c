"""Lookup: finds sessions, runs and checkpoints in the catalog on behalf of a caller.

Routes that need only a Lookup are served by API replicas too. To a caller, another user's rows look as if they
did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Request

from chockstone.api.users import Caller
from chockstone.catalog import Catalog, CheckpointRow, RowMissing, RunProgress, RunRow, SamplerRow, SessionRow
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.paths import TinkerPath, check_name

Owned = TypeVar("Owned", SessionRow, RunRow, SamplerRow)


class Lookup(Protocol):
    """``Context`` is one with an engine; an API replica has one without."""

    now: Callable[[], datetime]

    @property
    def catalog(self) -> Catalog: ...

    @property
    def instruments(self) -> Instruments: ...

    def last_request(self, row: RunRow) -> datetime: ...

    def progress(self, row: RunRow) -> RunProgress: ...

    async def session(self, session_id: str, caller: Caller) -> SessionRow:
        absence = f"session {session_id!r} is not yours or not there; create one with create_session"
        with one_absence(absence):
            return owned(await self.catalog.sessions.get(session_id), caller)

    async def run_row(self, run_id: str, caller: Caller | None) -> RunRow:
        """A run of the caller, or of any user when ``caller`` is None, as for an admin."""
        with one_absence(f"run {run_id!r} is not yours or not there; `chockstone runs ls` shows yours"):
            row = await self.catalog.runs.get(run_id)
            return row if caller is None else owned(row, caller)

    async def readable(self, path: TinkerPath, caller: Caller) -> CheckpointRow:
        """A checkpoint that the caller may read, damaged or not."""
        try:
            row = await self.catalog.checkpoints.get(path.run_id, path.kind.value, path.name, now=self.now())
        except RowMissing as error:
            absence = await self.absence(path, caller, error)
            if absence is error:
                check_name(path.name)  # refuses ``latest``
            raise absence from None
        if not self.may_read(row, caller):
            raise not_there(path)
        return row

    def may_read(self, row: CheckpointRow, caller: Caller) -> bool:
        return row.public or row.owner == caller.user_id

    async def absence(self, path: TinkerPath, caller: Caller, found: RowMissing) -> RowMissing:
        """The run's owner learns why the checkpoint is missing; others learn only that it is not there."""
        try:
            owned(await self.catalog.runs.get(path.run_id), caller)
        except RowMissing:
            return not_there(path)
        return found


@contextmanager
def one_absence(message: str) -> Iterator[None]:
    """Use the same message for a missing row and for another user's row."""
    try:
        yield
    except RowMissing:
        raise RowMissing(message) from None


def not_there(path: TinkerPath) -> RowMissing:
    return RowMissing(f"checkpoint '{path}' is not yours or not there; `chockstone checkpoints ls` shows yours")


def owned(row: Owned, caller: Caller) -> Owned:
    if row.owner != caller.user_id:
        raise RowMissing
    return row


def _lookup(request: Request) -> Lookup:
    lookup: Lookup = request.app.state.context
    return lookup


LookupDep = Annotated[Lookup, Depends(_lookup)]
