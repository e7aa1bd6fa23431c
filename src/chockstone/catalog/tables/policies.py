"""The policy table: retention policies for all users, one user or one run, as set through the API.

A policy is stored as JSON; the engine knows its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import delete, select

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import JsonObject, RowMapper, upsert


@dataclass(frozen=True, slots=True)
class PolicyRow:
    scope: str  # "global", "user:<id>" or "run:<id>"
    policy: JsonObject
    changed_at: datetime
    changed_by: str


_ROWS: Final = RowMapper(PolicyRow, tables.policies)
_POLICIES: Final = tables.policies.c


class PolicyTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, scope: str, policy: JsonObject, *, by: str, now: datetime) -> PolicyRow:
        """Replace the scope's whole policy."""
        values = {"scope": scope, "policy": dict(policy), "changed_at": now, "changed_by": by}
        await upsert(self._database, tables.policies, [values], replace=("policy", "changed_at", "changed_by"))
        return PolicyRow(scope, dict(policy), now, by)

    async def get(self, scope: str) -> PolicyRow | None:
        return await _ROWS.find(self._database, _POLICIES.scope == scope)

    async def list(self) -> tuple[PolicyRow, ...]:
        """By scope."""
        return await _ROWS.read(self._database, select(*_ROWS.columns).order_by(_POLICIES.scope))

    async def remove(self, scope: str) -> bool:
        """Whether there was one."""
        removal = delete(tables.policies).where(_POLICIES.scope == scope).returning(_POLICIES.scope)
        [removed] = await self._database.write(removal)
        return bool(removed)
