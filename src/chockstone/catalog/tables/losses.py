"""The loss table: custom loss graphs that clients uploaded. A loss's id has its session and its number in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import JsonObject, RowMapper
from chockstone.catalog.errors import RowMissing


@dataclass(frozen=True, slots=True)
class LossRow:
    loss_id: str
    session_id: str
    custom_loss_seq_id: int
    owner: str
    name: str
    definition: JsonObject
    created_at: datetime


_ROWS: Final = RowMapper(LossRow, tables.custom_losses)
_LOSSES: Final = tables.custom_losses.c


class LossTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        session_id: str,
        custom_loss_seq_id: int,
        *,
        owner: str,
        name: str,
        definition: JsonObject,
        now: datetime,
    ) -> LossRow:
        """Store the loss, or return the existing loss with this number, whatever its values."""
        loss_id = f"{session_id}:loss:{custom_loss_seq_id}"
        loss = await _ROWS.create_once(
            self._database,
            loss_id=loss_id,
            session_id=session_id,
            custom_loss_seq_id=custom_loss_seq_id,
            owner=owner,
            name=name,
            definition=dict(definition),
            created_at=now,
        )
        if loss is None:
            raise RowMissing(f"custom loss {loss_id!r} needs session {session_id!r}, which is not in this catalog")
        return loss

    async def get(self, loss_id: str) -> LossRow:
        loss = await _ROWS.find(self._database, _LOSSES.loss_id == loss_id)
        if loss is None:
            raise RowMissing(f"custom loss {loss_id!r} is not in this catalog; upload it with create_custom_loss")
        return loss
