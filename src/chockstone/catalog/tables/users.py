"""Keys: who may call, by the digests of their keys. The keys themselves are never here."""

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
        """``RowExists`` if the key is somebody's already, revoked or not."""
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
        """Whether this call did: False if there is none, or none that was valid."""
        is_valid = _KEYS.revoked_at.is_(None)
        return await _KEY_ROWS.change(self._database, _KEYS.key_id == key_id, is_valid, revoked_at=now) is not None

    async def active(self) -> dict[str, str]:
        """The user of each valid key, by its digest."""
        query = select(_KEYS.digest, _KEYS.user_id).where(_KEYS.revoked_at.is_(None))
        return {found[0]: found[1] for found in await self._database.read(query)}


@dataclass(frozen=True, slots=True)
class UserRow:
    user_id: str
    created_at: datetime


_USER_ROWS: Final = RowMapper(UserRow, tables.users)


class UserTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def ensure(self, user_id: str, *, now: datetime) -> UserRow:
        """The user's row, made now if there is none."""
        user = await _USER_ROWS.create_once(self._database, user_id=user_id, created_at=now)
        return user if user is not None else await self.get(user_id)

    async def get(self, user_id: str) -> UserRow:
        user = await _USER_ROWS.find(self._database, tables.users.c.user_id == user_id)
        if user is None:
            raise RowMissing(f"user {user_id!r} has never been seen by this server")
        return user

    async def list(self) -> tuple[UserRow, ...]:
        return await _USER_ROWS.read(self._database, select(*_USER_ROWS.columns).order_by(tables.users.c.user_id))
