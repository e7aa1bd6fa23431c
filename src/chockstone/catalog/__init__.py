"""The catalog: the SQL index of users, sessions, runs, checkpoints and samplers, and what they did and used.

Knows no torch, no HTTP and no owner's rights: rows say whose they are, the API decides. The store
is the truth about checkpoints; this is where they are looked up.
"""

from chockstone.catalog.audit import AuditEntry, AuditRow
from chockstone.catalog.catalog import Catalog
from chockstone.catalog.checkpoint_row import CheckpointKind, CheckpointRow, CheckpointState
from chockstone.catalog.checkpoint_usage import Usage
from chockstone.catalog.checkpoints import Committed
from chockstone.catalog.engine import EngineRow
from chockstone.catalog.engine_lock import EngineLock
from chockstone.catalog.errors import (
    CatalogAway,
    CatalogError,
    CatalogForeign,
    CatalogInUse,
    CatalogNotReady,
    CatalogTooNew,
    CatalogUnavailable,
    CheckpointExists,
    RowExists,
    RowMissing,
    UnstorableValue,
)
from chockstone.catalog.keys import KeyRow
from chockstone.catalog.losses import LossRow
from chockstone.catalog.policies import PolicyRow
from chockstone.catalog.recoveries import RecoveryRow
from chockstone.catalog.rows import JsonObject, Page
from chockstone.catalog.runs import RunRow, RunState
from chockstone.catalog.samplers import SamplerRow
from chockstone.catalog.session_row import FinishReason, SessionRow
from chockstone.catalog.session_search import Cursor, SessionPage, SessionQuery, SessionSummary, StatusFilter
from chockstone.catalog.sqlite_guard import SqliteGuard
from chockstone.catalog.trash_row import TrashRow
from chockstone.catalog.usage import Use, UseType
from chockstone.catalog.users import UserRow

__all__ = [
    "AuditEntry",
    "AuditRow",
    "Catalog",
    "CatalogAway",
    "CatalogError",
    "CatalogForeign",
    "CatalogInUse",
    "CatalogNotReady",
    "CatalogTooNew",
    "CatalogUnavailable",
    "CheckpointExists",
    "CheckpointKind",
    "CheckpointRow",
    "CheckpointState",
    "Committed",
    "Cursor",
    "EngineLock",
    "EngineRow",
    "FinishReason",
    "JsonObject",
    "KeyRow",
    "LossRow",
    "Page",
    "PolicyRow",
    "RecoveryRow",
    "RowExists",
    "RowMissing",
    "RunRow",
    "RunState",
    "SamplerRow",
    "SessionPage",
    "SessionQuery",
    "SessionRow",
    "SessionSummary",
    "SqliteGuard",
    "StatusFilter",
    "TrashRow",
    "UnstorableValue",
    "Usage",
    "Use",
    "UseType",
    "UserRow",
]
