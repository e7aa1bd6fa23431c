"""What can go wrong with the catalog, as one tree.

CatalogError
├── RowMissing            no such row, or one that expired
├── RowExists             the name is taken
│   └── CheckpointRowExists   by a published checkpoint, or by one being written
├── UnstorableColumnValue a value that no column can hold: the caller must change it
├── CatalogTooNew         a later version of this program created it
├── CatalogForeign        another program created tables of the same names
├── CatalogInUse          another server's engine runs on it
└── CatalogUnavailable    the database cannot be reached, written or understood
    ├── CatalogNotReady       a server of this version must start on it first, to create or migrate it
    └── CatalogAway           temporarily: its server is stopped, full or read-only; retry
"""

from __future__ import annotations

from typing import Literal


class CatalogError(Exception):
    """Root of everything this room raises on purpose."""


class RowMissing(CatalogError):
    """``code``: "expired", or "damaged" when every candidate is damaged."""

    def __init__(self, message: str = "", *, code: Literal["expired", "damaged"] | None = None) -> None:
        super().__init__(message)
        self.code = code


class RowExists(CatalogError):
    pass


class CheckpointRowExists(RowExists):
    pass


class UnstorableColumnValue(CatalogError):
    pass


class CatalogTooNew(CatalogError):
    pass


class CatalogForeign(CatalogError):
    pass


class CatalogInUse(CatalogError):
    pass


class CatalogUnavailable(CatalogError):
    pass


class CatalogNotReady(CatalogUnavailable):
    pass


class CatalogAway(CatalogUnavailable):
    """``may_be_done``: the answer to a commit was lost, so the transaction may have been committed."""

    def __init__(self, message: str = "", *, may_be_done: bool = False) -> None:
        super().__init__(message)
        self.may_be_done = may_be_done
