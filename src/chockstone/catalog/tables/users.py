"""Users, and the digests of their API keys. The keys themselves are never stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper
from chockstone.catalog.errors import RowExists, RowMissing


@dataclass(frozen=True, slots=True)
class KeyRow:
    key_id: int
    user_id: str
    digest: str  # SHA-256 of the key, in hexadecimal
    hint: str  # the key's last characters, to tell it from others
    note: str
    created_at: datetime
    revoked_at: datetime | None

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None


_KEY_ROWS: Final = RowMapper(KeyRow, tables.keys)
_KEYS: Final = tables.keys.c


class KeyTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, user_id: str, digest: str, *, hint: str, now: datetime, note: str = "") -> KeyRow:
        """``RowExists`` if the key is in the catalog already, revoked or not."""
        creation = insert(tables.keys).values(user_id=user_id, digest=digest, hint=hint, note=note, created_at=now)
        try:
            [[made]] = await self._database.write(creation.returning(*_KEY_ROWS.columns))
        except IntegrityError as error:
            raise RowExists(f"the key that ends in {hint!r} is in this catalog already; create another one") from error
        return _KEY_ROWS.row(made)

    async def list(self) -> tuple[KeyRow, ...]:
        """Oldest first, revoked ones too."""
        return await _KEY_ROWS.read(self._database, select(*_KEY_ROWS.columns).order_by(_KEYS.key_id))

    async def revoke(self, key_id: int, *, now: datetime) -> bool:
        """Returns whether this call revoked it: False for an unknown key or one that was revoked before."""
        is_valid = _KEYS.revoked_at.is_(None)
        return await _KEY_ROWS.change(self._database, _KEYS.key_id == key_id, is_valid, revoked_at=now) is not None


@dataclass(frozen=True, slots=True)
class UserRow:
    user_id: str
    created_at: datetime


_USER_ROWS: Final = RowMapper(UserRow, tables.users)


class UserTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def ensure(self, user_id: str, *, now: datetime) -> UserRow:
        """The user's row, created if there is none."""
        user = await _USER_ROWS.create_once(self._database, user_id=user_id, created_at=now)
        return user if user is not None else await self.get(user_id)

    async def get(self, user_id: str) -> UserRow:
        user = await _USER_ROWS.find(self._database, tables.users.c.user_id == user_id)
        if user is None:
            raise RowMissing(f"user {user_id!r} has never been seen by this server")
        return user
