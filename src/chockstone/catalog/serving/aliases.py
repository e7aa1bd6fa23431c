"""The alias table: names that stand for a checkpoint or a base model. One row for each change, never altered.

The newest change of a name is its present target, so one insert switches an alias. An undo adds a change, too: it goes
back to the change that the present one was made on. Names of the owner ``SERVER_WIDE`` hold for all users.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import Select, and_, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper
from chockstone.catalog.errors import RowMissing

SERVER_WIDE: Final = ""
HISTORY_LIMIT: Final = 1000  # changes kept of one alias; older ones cannot be undone any more

AliasAction = Literal["set", "undo", "remove"]
TargetCheck = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AliasRow:
    owner: str  # ``SERVER_WIDE``: for all users
    name: str
    revision: int  # 1, 2, 3 and so on
    action: AliasAction
    target: str | None  # a tinker:// path or a base model; None: the alias was removed
    undo_revision: int | None  # the change that an undo of this one goes back to
    changed_at: datetime
    changed_by: str
    stores: bool = False  # conversations with the target are stored, unless the request says otherwise


_ROWS: Final = RowMapper(AliasRow, tables.aliases)
_ALIASES: Final = tables.aliases.c


class AliasTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def resolve(self, name: str, user: str) -> AliasRow | None:
        """The user's own alias of this name, or else the server-wide one, or None."""
        return await self.get(user, name) or await self.get(SERVER_WIDE, name)

    async def get(self, owner: str, name: str) -> AliasRow | None:
        """None for an alias that was removed."""
        newest = await self._newest(owner, name)
        return None if newest is None or newest.target is None else newest

    async def list(self, *owners: str) -> tuple[AliasRow, ...]:
        """The aliases of these owners, or of all users, by name."""
        query = _present()
        if owners:
            query = query.where(_ALIASES.owner.in_(owners))
        return await _ROWS.read(self._database, query.order_by(_ALIASES.name, _ALIASES.owner))

    async def pointing_at(self, targets: Collection[str], *, owner: str) -> tuple[AliasRow, ...]:
        """Aliases of the owner and of the server whose target is one of these, by name."""
        return tuple(row for row in await self.list(owner, SERVER_WIDE) if row.target in targets)

    async def set(
        self, owner: str, name: str, target: str, *, by: str, now: datetime, stores: bool | None = None
    ) -> AliasRow:
        """Switch the alias. The same again changes nothing. ``stores`` None: as it is, and False for a new alias."""
        while True:
            old = await self._newest(owner, name)
            wanted = _stores(old) if stores is None else stores
            if old is not None and (old.target, old.stores) == (target, wanted):
                return old
            changed = await self._add(owner, name, old, "set", target, _revision(old), stores=wanted, by=by, now=now)
            if changed is not None:
                return changed

    async def undo(
        self, owner: str, name: str, *, by: str, now: datetime, check: TargetCheck | None = None
    ) -> AliasRow:
        """Take back the present change. The row's target is None if there was no alias before it.

        ``check`` raises if the alias must not point at a target; nothing is changed then. It is called again if another
        call changes the alias meanwhile. Raises RowMissing if the alias was never set, or if nothing is left to undo.
        """
        while True:
            old = await self._newest(owner, name)
            if old is None:
                raise _never_set(name)
            before = await self._before(old)
            target, undo_revision = (None, None) if before is None else (before.target, before.undo_revision)
            if check is not None and target is not None:
                await check(target)
            changed = await self._add(
                owner, name, old, "undo", target, undo_revision, stores=_stores(before), by=by, now=now
            )
            if changed is not None:
                return changed

    async def remove(self, owner: str, name: str, *, by: str, now: datetime) -> AliasRow:
        """Its history stays, and the removal can be undone. Raises RowMissing if there is no such alias."""
        while True:
            old = await self._newest(owner, name)
            if old is None or old.target is None:
                raise _never_set(name)
            changed = await self._add(owner, name, old, "remove", None, old.revision, stores=False, by=by, now=now)
            if changed is not None:
                return changed

    async def history(self, owner: str, name: str, *, limit: int = 100) -> tuple[AliasRow, ...]:
        """Newest first, of removed aliases too."""
        query = select(*_ROWS.columns).where(_ALIASES.owner == owner, _ALIASES.name == name)
        return await _ROWS.read(self._database, query.order_by(_ALIASES.revision.desc()).limit(limit))

    async def _newest(self, owner: str, name: str) -> AliasRow | None:
        found = await self.history(owner, name, limit=1)
        return found[0] if found else None

    async def _before(self, row: AliasRow) -> AliasRow | None:
        """The change to go back to; None: there was no alias before. Raises RowMissing if nothing can be undone."""
        before = None
        if row.undo_revision is not None:
            before = await self._at(row.owner, row.name, row.undo_revision)
        if before is None and (row.undo_revision is not None or row.target is None):
            raise RowMissing(f"alias {row.name!r} has no earlier target; nothing was changed")
        return before

    async def _at(self, owner: str, name: str, revision: int) -> AliasRow | None:
        is_it = (_ALIASES.owner == owner, _ALIASES.name == name, _ALIASES.revision == revision)
        return await _ROWS.find(self._database, *is_it)

    async def _add(
        self,
        owner: str,
        name: str,
        old: AliasRow | None,
        action: AliasAction,
        target: str | None,
        undo_revision: int | None,
        *,
        stores: bool,
        by: str,
        now: datetime,
    ) -> AliasRow | None:
        """None if another call changed the alias meanwhile: the revision is taken."""
        row = AliasRow(owner, name, (_revision(old) or 0) + 1, action, target, undo_revision, now, by, stores)
        creation = insert(tables.aliases).values(
            owner=owner,
            name=name,
            revision=row.revision,
            action=action,
            target=target,
            undo_revision=undo_revision,
            changed_at=now,
            changed_by=by,
            stores=stores,
        )
        is_old = _ALIASES.revision <= row.revision - HISTORY_LIMIT
        trim = delete(tables.aliases).where(_ALIASES.owner == owner, _ALIASES.name == name, is_old)
        try:
            await self._database.write(creation, trim)
        except IntegrityError:
            return None
        return row


def _present() -> Select[Any]:  # Any: columns are of all types
    """The newest change of each alias that is not removed."""
    newest = (
        select(_ALIASES.owner, _ALIASES.name, func.max(_ALIASES.revision).label("revision"))
        .group_by(_ALIASES.owner, _ALIASES.name)
        .subquery("newest")
    )
    is_newest = and_(
        newest.c.owner == _ALIASES.owner, newest.c.name == _ALIASES.name, newest.c.revision == _ALIASES.revision
    )
    return select(*_ROWS.columns).join(newest, is_newest).where(_ALIASES.target.is_not(None))


def _revision(row: AliasRow | None) -> int | None:
    return None if row is None else row.revision


def _stores(row: AliasRow | None) -> bool:
    return row is not None and row.stores


def _never_set(name: str) -> RowMissing:
    return RowMissing(f"there is no alias {name!r}; `chockstone alias ls` shows yours and those of the server")
