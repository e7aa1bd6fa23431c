"""The catalog: the SQL index of users, sessions, runs, checkpoints and samplers, with their audit and usage.

Must not know torch, HTTP or permissions: a row names its owner, and the API decides who may read it. The store is
the truth about checkpoints; the catalog is an index of it.
"""

from chockstone.catalog.catalog import Catalog
from chockstone.catalog.database.engine_lock import EngineLock
from chockstone.catalog.database.rows import JsonObject, Page
from chockstone.catalog.database.sqlite import SqliteGuard
from chockstone.catalog.errors import (
    CatalogAway,
    CatalogError,
    CatalogForeign,
    CatalogInUse,
    CatalogNotReady,
    CatalogTooNew,
    CatalogUnavailable,
    CheckpointRowExists,
    RowExists,
    RowMissing,
    UnstorableColumnValue,
)
from chockstone.catalog.serving.aliases import SERVER_WIDE, AliasRow
from chockstone.catalog.serving.sampler_gaps import BASE_ITSELF, SamplerGapRow
from chockstone.catalog.tables.audit import AuditEvent, AuditRow
from chockstone.catalog.tables.checkpoint_rows import CheckpointKind, CheckpointRow, CheckpointState, TrashRow, Usage
from chockstone.catalog.tables.checkpoint_saves import Committed
from chockstone.catalog.tables.engine import EngineRow
from chockstone.catalog.tables.losses import LossRow
from chockstone.catalog.tables.policies import PolicyRow
from chockstone.catalog.tables.recoveries import RecoveryRow
from chockstone.catalog.tables.runs import RunProgress, RunRow, RunState
from chockstone.catalog.tables.samplers import SamplerRow
from chockstone.catalog.tables.session_search import (
    FinishReason,
    SessionCursor,
    SessionPage,
    SessionQuery,
    SessionRow,
    SessionSummaryRow,
    StatusFilter,
)
from chockstone.catalog.tables.usage import JournalUses, UsagePosition, Use, UseType
from chockstone.catalog.tables.users import KeyRow, UserRow

__all__ = [
    "AliasRow",
    "AuditEvent",
    "AuditRow",
    "BASE_ITSELF",
    "Catalog",
    "CatalogAway",
    "CatalogError",
    "CatalogForeign",
    "CatalogInUse",
    "CatalogNotReady",
    "CatalogTooNew",
    "CatalogUnavailable",
    "CheckpointRowExists",
    "CheckpointKind",
    "CheckpointRow",
    "CheckpointState",
    "Committed",
    "SessionCursor",
    "EngineLock",
    "EngineRow",
    "FinishReason",
    "JournalUses",
    "JsonObject",
    "KeyRow",
    "LossRow",
    "Page",
    "PolicyRow",
    "RecoveryRow",
    "RowExists",
    "RowMissing",
    "SERVER_WIDE",
    "RunProgress",
    "RunRow",
    "RunState",
    "SamplerGapRow",
    "SamplerRow",
    "SessionPage",
    "SessionQuery",
    "SessionRow",
    "SessionSummaryRow",
    "SqliteGuard",
    "StatusFilter",
    "TrashRow",
    "UnstorableColumnValue",
    "Usage",
    "UsagePosition",
    "Use",
    "UseType",
    "UserRow",
]
