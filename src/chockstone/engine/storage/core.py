"""The storage core: builds the parts that keep checkpoints, verify them and delete them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import StorageRules
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.engine.storage.leftovers import Leftovers
from chockstone.engine.storage.policies import PolicyStore
from chockstone.engine.storage.quotas import QuotaLedger
from chockstone.engine.storage.scrub import Scrub
from chockstone.engine.storage.sweeper import Sweeper
from chockstone.engine.storage.verification import CheckpointVerifier


class StorageCore:
    def __init__(
        self,
        catalog: Catalog,
        storage: ArchiveStorage,
        audit: AuditLog,
        rules: StorageRules,
        *,
        journals: Path,
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool],
        is_needed: Callable[[str], bool],
        on_deleted: Callable[[str], None],
    ) -> None:
        """``journals``: directory of the runs' journals. ``is_needed``: whether a run needs this archive to recover.

        ``on_deleted`` is called with each deleted archive.
        """
        self.policies = PolicyStore(catalog, rules, now=now, on_change=self._policies_changed)
        self.quotas = QuotaLedger(catalog, self.policies, now=now)
        self.verifier = CheckpointVerifier(catalog, storage, audit, now=now)
        self.checkpoints = CheckpointLifecycle(
            catalog,
            storage,
            rules,
            self.quotas,
            self.verifier,
            audit,
            now=now,
            trusts_ages=trusts_ages,
            is_needed=is_needed,
            on_purged=on_deleted,
            on_change=self._checkpoints_changed,
        )
        self.sweeper = Sweeper(
            catalog,
            storage,
            self.checkpoints,
            self.verifier,
            self.policies,
            Leftovers(catalog, storage, journals=journals, on_deleted=on_deleted),
            rules,
            now=now,
            trusts_ages=trusts_ages,
        )
        self.scrub = Scrub(catalog, self.verifier, rules, now=now)

    def _checkpoints_changed(self, run_id: str) -> None:
        self.sweeper.saw(run_id)

    def _policies_changed(self) -> None:
        self.sweeper.look_at_everything()
