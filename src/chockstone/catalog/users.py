"""Users: who has been here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select

from chockstone.catalog import tables
from chockstone.catalog.database import Database
from chockstone.catalog.errors import RowMissing
from chockstone.catalog.rows import Rows


@dataclass(frozen=True, slots=True)
class UserRow:
    user_id: str
    created_at: datetime


_ROWS: Final = Rows(UserRow, tables.users)


class Users:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def ensure(self, user_id: str, *, now: datetime) -> UserRow:
        """The user's row, made now if there is none."""
        user = await _ROWS.create_once(self._database, user_id=user_id, created_at=now)
        return user if user is not None else await self.get(user_id)

    async def get(self, user_id: str) -> UserRow:
        user = await _ROWS.find(self._database, tables.users.c.user_id == user_id)
        if user is None:
            raise RowMissing(f"user {user_id!r} has never been seen by this server")
        return user

    async def list(self) -> tuple[UserRow, ...]:
        return await _ROWS.read(self._database, select(*_ROWS.columns).order_by(tables.users.c.user_id))
