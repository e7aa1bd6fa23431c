"""Storage rules: what a server keeps, for how long, and how much of it; as it was started.

Policies set later, for everyone, a user or a run, stand in the catalog and win over the retention here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chockstone.checkpoints import Retention


@dataclass(frozen=True, slots=True)
class StorageRules:
    retention: Retention = field(default_factory=Retention)
    user_quota_bytes: int | None = None  # of all checkpoints of one user
    run_quota_bytes: int | None = None
    reserve_bytes: int = 1 << 30  # of the disk, never written into
    trash_seconds: float = 0.0  # how long what was removed can be restored; 0: it is gone at once
    sweep_seconds: float = 60.0  # between two looks for what has to go
    scrub_bytes_per_second: int = 16 << 20  # read again to check digests; 0: never
    scrub_every_seconds: float = 7 * 24 * 3600.0  # each checkpoint at most this often
