"""Archives open for reading: members, tensors and digests, verified and in place.

Writes nothing, and does not know the objects that a state is restored into.
"""

from chockstone.checkpoints.reading.archive import Archive, Verify
from chockstone.checkpoints.reading.listing import StoredCheckpoint, list_checkpoints
from chockstone.checkpoints.reading.reader import verify_archive

__all__ = ["Archive", "StoredCheckpoint", "Verify", "list_checkpoints", "verify_archive"]
