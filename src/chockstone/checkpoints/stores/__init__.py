"""Where archives live: a directory, S3 and other object stores.

Knows names and bytes. It does not know what an archive holds, nor which archive is newer or better.
"""

from chockstone.checkpoints.stores.store import ArchiveSource, PartialWrite, Sink, Store, StoreEntry, open_store

__all__ = ["ArchiveSource", "PartialWrite", "Sink", "Store", "StoreEntry", "open_store"]
