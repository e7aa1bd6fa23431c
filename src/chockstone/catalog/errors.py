"""What can go wrong with the catalog, as one tree.

CatalogError
├── RowMissing            no such row, or one that expired
├── RowExists             the name is taken
│   └── CheckpointExists      by a published checkpoint, or by one being written
├── UnstorableValue       a value no column holds: the caller's to change
├── CatalogTooNew         a later version of this program made it
├── CatalogForeign        tables of the same names, made by something else
├── CatalogInUse          another server's engine runs on it
└── CatalogUnavailable    the database cannot be reached, written or understood
    ├── CatalogNotReady       no server of this version has started on it yet, which makes or migrates it
    └── CatalogAway           for now: its server is stopped, full or read-only, and may be back in a moment
"""

from __future__ import annotations

from typing import Literal


class CatalogError(Exception):
    """Root of everything this room raises on purpose."""


class RowMissing(CatalogError):
    """``code`` is for programs: "expired", or "damaged" where there were some and none can be used."""

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
    """``may_be_done``: the answer to a commit was lost, so nobody knows whether it took place."""

    def __init__(self, message: str = "", *, may_be_done: bool = False) -> None:
        super().__init__(message)
        self.may_be_done = may_be_done
