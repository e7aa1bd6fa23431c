"""The writer: DCP's saves as one archive that all ranks write together."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from pathlib import Path
from typing import Any, Final, Unpack

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from chockstone.checkpoints.errors import InvalidName, SaveFailed
from chockstone.checkpoints.format.tree import Tree
from chockstone.checkpoints.ranks.peers import PeerFailed
from chockstone.checkpoints.ranks.ranked_save import RankedSave, decline
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.saving.handle import SavedCheckpoint, SaveHandle
from chockstone.checkpoints.saving.job import SaveJob
from chockstone.checkpoints.saving.request import SaveOptions, SaveRequest, make_request
from chockstone.checkpoints.stores.store import Store, check_name, open_store
from chockstone.integrations.checkpointer_options import RANK_TIMEOUT_SECONDS
from chockstone.integrations.dcp.items import (
    RankItems,
    collect_items,
    describe_leaves,
    join_tree,
    make_tree,
    single_tree,
)
from chockstone.integrations.dcp.session import RankPlan, RankSession, common_plan, own_rank, session_of
from chockstone.integrations.dcp.staging import WriterStaging

FACTS: Final = "dcp"  # the key in the manifest's metadata
_STEP_NAME: Final = re.compile(r"step-(\d{1,18})\Z")


class ArchiveWriter(StorageWriter):
    """Writes what ``dcp.save`` and ``dcp.async_save`` save as one verified archive.

        dcp.save(state, storage_writer=ArchiveWriter("./checkpoints", prefix="run-1", step=100))

    Each rank writes the bytes that DCP's plan gives it. The archive becomes visible when all ranks are done; if one
    fails or dies, nothing does. When ``dcp.save`` returns, the archive is durable. One writer may be used for many
    saves, one after the other.
    """

    def __init__(
        self,
        store: str | Path | Store,
        *,
        prefix: str = "",
        retention: Retention | None = None,
        bytes_per_second: float | None = None,
        rank_timeout_seconds: float = RANK_TIMEOUT_SECONDS,
        **options: Unpack[SaveOptions],
    ) -> None:
        """``store``: a directory, or the URL of an object store. ``prefix``: the folder of this run in the store.

        ``options`` are those of ``Checkpointer.save``: ``step``, ``name``, ``metrics``, ``metadata``, ``overwrite`` and
        more. ``dcp.save(…, checkpoint_id="step-00000200")`` gives another name; a name of this form also sets the step.
        ``bytes_per_second``: rate limit of writes. A rank that sends nothing for
        ``rank_timeout_seconds`` counts as lost.
        """
        if prefix:
            check_name(prefix)
        self._store = store
        self.prefix = prefix
        self.retention = retention
        self._bytes_per_second = bytes_per_second or math.inf
        self._rank_timeout_seconds = rank_timeout_seconds
        self._options = options
        self._name = options.get("name")
        self._step = options.get("step")
        self._staging = WriterStaging()
        self.saved: SavedCheckpoint | None = None  # the last one that this process saved
        if self._name is not None:
            self._take_name(self._name)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.saved = None
        if checkpoint_id is not None:
            self._step = None
            self._take_name(str(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002  # DCP's
        if not kwargs.get("use_collectives", True):
            raise ValueError("ArchiveWriter writes one archive with all ranks: call dcp.save with use_collectives=True")
        self._full_name()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return dataclasses.replace(plan, storage_data=RankPlan((own_rank(),)))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        common = common_plan(plans)
        return [dataclasses.replace(plan, storage_data=common) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part. Returns when the archive is durable and visible, or raises on all ranks."""
        ranks = plan.storage_data.ranks if isinstance(plan.storage_data, RankPlan) else ()
        session = session_of(ranks, timeout_seconds=self._rank_timeout_seconds)
        with session.lock:
            self.saved = self._save(session, plan, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing is left to do: the ranks have committed the archive together."""

    def stage(self, state_dict: dict[str, Any]) -> Any:  # Any: as DCP has it
        """Copy the state for ``dcp.async_save``, which takes a writer that can stage as its stager."""
        return self._staging.stage(state_dict)

    @property
    def should_synchronize_after_execute(self) -> bool:
        return False

    def synchronize_staging(self) -> None:
        """Nothing to wait for: ``stage`` returns when the copy is made."""

    def close(self) -> None:
        """Nothing to close: host memory outlives the writer. ``release_buffers`` frees it."""

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self._name)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        try:
            check_name(str(checkpoint_id))
        except InvalidName:
            return False
        return True

    def _save(self, session: RankSession, plan: SavePlan, planner: SavePlanner) -> SavedCheckpoint:
        started, peers = time.perf_counter(), session.peers
        if peers is None:
            own = collect_items(plan, planner)
            return self._job(session, single_tree(own), own, started).run()
        try:
            tree, own = _agree_on_tree(session, plan, planner)
        except PeerFailed as failed:
            raise failed.error(default=SaveFailed) from failed
        try:
            job = self._job(session, tree, own, started)
        except BaseException as error:
            decline(peers, error)
            raise
        return RankedSave(job, peers, session.cache).run()

    def _job(self, session: RankSession, tree: Tree, own: RankItems, started: float) -> SaveJob:
        store = open_store(self._store)
        snapshot = session.snapshotter.begin(tree, rank=session.rank, world_size=session.world_size).run(lambda: False)
        self._staging.end()
        place = (store.url, self.prefix)
        is_first = place not in session.seen_places
        session.seen_places.add(place)
        request = dataclasses.replace(self._request(own), started=started)
        return SaveJob(
            store,
            self.prefix,
            request,
            snapshot,
            session.clock,
            self.retention,
            SaveHandle(request.name),
            is_first=is_first,
            bytes_per_second=self._bytes_per_second,
        )

    def _request(self, own: RankItems) -> SaveRequest:
        options = self._options.copy()
        options["step"] = self._step
        if not own.is_flat:  # the reader must not flatten it either
            options["metadata"] = {**options.get("metadata", {}), FACTS: {"is_flat": False}}
        return make_request(options, name=self._full_name(), admission=options.get("admission") or Admission())

    def _take_name(self, name: str) -> None:
        check_name(name)
        self._name = name
        if self._step is None and (found := _STEP_NAME.match(name.rpartition("/")[2])):
            self._step = int(found[1])

    def _full_name(self) -> str:
        name = self._name
        if name is None:
            if self._step is None:
                raise ValueError(
                    "a checkpoint needs a name: give ArchiveWriter a step or a name, or dcp.save a checkpoint_id"
                )
            name = f"step-{self._step:08d}"
        full = f"{self.prefix}/{name}" if self.prefix and not name.startswith(f"{self.prefix}/") else name
        check_name(full)
        return full


def _agree_on_tree(session: RankSession, plan: SavePlan, planner: SavePlanner) -> tuple[Tree, RankItems]:
    """The same tensors in the same order on all ranks, each with what the rank has. Raises on all if one fails."""
    peers = session.peers
    assert peers is not None
    own, error = RankItems({}, is_flat=True), None
    described: dict[str, Any] = {}
    made: list[Tree] = []
    try:
        own = collect_items(plan, planner)
        described = own.describe(packs_values=not peers.is_leader)
    except BaseException as raised:  # noqa: BLE001  # raised below, after the other ranks got it
        error = raised

    def decide(messages: list[dict[str, Any]]) -> dict[str, Any]:
        tree, names = make_tree(messages, own)
        made.append(tree)
        return {"leaves": describe_leaves(tree, names)}

    answer = peers.gather_and_decide(described, decide, error=error)
    return made[0] if made else join_tree(answer["leaves"], own), own
