"""What can go wrong with the catalog, as one tree.

CatalogError
├── RowMissing            no such row, or one that expired
├── RowExists             the name is taken
│   └── CheckpointExists      by a published checkpoint, or by one being written
├── UnstorableValue       a value no column holds: the caller's to change
├── CatalogTooNew         a later version of this program made it
├── CatalogForeign        tables of the same names, made by something else
└── CatalogUnavailable    the database cannot be reached, written or understood
"""

from __future__ import annotations


class CatalogError(Exception):
    """Root of everything this room raises on purpose."""


class RowMissing(CatalogError):
    pass


class RowExists(CatalogError):
    pass


class CheckpointExists(RowExists):
    pass


class UnstorableValue(CatalogError):
    pass


class CatalogTooNew(CatalogError):
    pass


class CatalogForeign(CatalogError):
    pass


class CatalogUnavailable(CatalogError):
    pass
