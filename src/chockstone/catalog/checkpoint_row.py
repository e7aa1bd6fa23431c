"""The checkpoint row: what is known of one archive in the store, and which rows others may see.

Recovery archives and the weights of ephemeral samplers have no row here: nobody lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import Column, Insert, and_, insert, literal, or_, select
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import tables
from chockstone.catalog.rows import JsonObject, Rows

CheckpointKind = Literal["weights", "sampler_weights", "external_weights"]
CheckpointState = Literal["pending", "ready", "damaged"]


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    save_id: int  # of the save that wrote it; later saves have higher ones
    run_id: str
    kind: CheckpointKind
    name: str
    owner: str
    archive: str  # its name in the store
    state: CheckpointState
    overwrites: bool  # whether its commit replaces one of the same name
    size_bytes: int  # as planned while pending
    created_at: datetime  # when it was begun: of two saves the later one holds the later weights
    expires_at: datetime | None
    public: bool
    user_metadata: Mapping[str, str]
    base_model: str
    spec: JsonObject
    optimizer_config: JsonObject
    step: int | None
    damage: str | None  # what is wrong with a damaged one
    verified_at: datetime | None = None  # when its archive was last read in full and found right
    seal: str | None = None  # SHA-256 of its archive's manifest, in hexadecimal; None: not known, as in rows of before

    @property
    def path(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


CHECKPOINT_ROWS: Final = Rows(CheckpointRow, tables.checkpoints)


def is_published() -> ColumnElement[bool]:
    return tables.checkpoints.c.state != "pending"


def is_visible(now: datetime | ColumnElement[datetime]) -> ColumnElement[bool]:
    """Published, and not expired."""
    expires_at = tables.checkpoints.c.expires_at
    return and_(is_published(), or_(expires_at.is_(None), expires_at > now))


def insertion(values: Mapping[str, object], *, unless: ColumnElement[bool]) -> Insert:
    """A row of ``values``, or of what is bound for them later, if the condition does not hold at that moment."""
    columns = [tables.checkpoints.c[column] for column in values]
    row = select(*(_placed(value, column) for value, column in zip(values.values(), columns, strict=True)))
    return insert(tables.checkpoints).from_select(columns, row.where(~unless))


def _placed(value: object, column: Column[Any]) -> ColumnElement[Any]:  # Any: columns are of all types
    return value if isinstance(value, ColumnElement) else literal(value, column.type)
