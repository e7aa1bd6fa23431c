"""The reader: DCP's loads from archives, each rank reading and verifying the bytes that it needs."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, RestoreMismatch
from chockstone.checkpoints.format.byte_runs import box_runs
from chockstone.checkpoints.format.shards import Box
from chockstone.checkpoints.format.tree import TensorReference
from chockstone.checkpoints.ranks.ranked_restore import RankedRestore
from chockstone.checkpoints.reading.archive import Archive, Verify
from chockstone.checkpoints.reading.listing import list_checkpoints
from chockstone.checkpoints.restoring.destinations import RestoreDestinations
from chockstone.checkpoints.restoring.receipt import Restored, RestoredPart, RestoreReceipt
from chockstone.checkpoints.restoring.search import CheckpointSearch
from chockstone.checkpoints.stores.store import Store, check_name, open_store
from chockstone.integrations.checkpointer_options import RANK_TIMEOUT_SECONDS
from chockstone.integrations.dcp.contents import ArchiveContents, StoredTensor, replace_leaves
from chockstone.integrations.dcp.session import RankPlan, common_plan, own_rank, session_of
from chockstone.integrations.dcp.writer import FACTS, ArchiveWriter


class ArchiveReader(StorageReader):
    """Loads with ``dcp.load`` what ``ArchiveWriter`` or ``Checkpointer`` saved, on any number of ranks.

        reader = ArchiveReader("./checkpoints", prefix="run-1")
        dcp.load(state, storage_reader=reader)
        print(reader.receipt)

    Without a name it takes the newest checkpoint that all ranks can read. Damaged ones are read twice, skipped, and
    named in ``receipt``. Every byte that a rank reads is verified.
    """

    def __init__(
        self,
        store: str | Path | Store,
        *,
        name: str | None = None,
        prefix: str = "",
        kind: str = "weights",
        verify: Verify = "full",
        rank_timeout_seconds: float = RANK_TIMEOUT_SECONDS,
    ) -> None:
        """``store``, ``prefix`` and ``name``: as of the writer. ``dcp.load(…, checkpoint_id=…)`` also names one."""
        if prefix:
            check_name(prefix)
        self._store = store
        self.prefix = prefix
        self._name = name
        self._kind = kind
        self._verify: Verify = verify
        self._rank_timeout_seconds = rank_timeout_seconds
        self._planned: ArchiveContents | None = None  # what the plan was made for
        self.receipt: RestoreReceipt | None = None  # of the last load

    def latest(self) -> str | None:
        """The full name of the checkpoint that a load would try first; None if there is none yet: a first start."""
        try:
            return str(self._search().load(lambda found: {"name": found, "contents": self._contents(found)})["name"])
        except CheckpointMissing:
            if self._name is None and list_checkpoints(open_store(self._store), self.prefix):
                raise  # all are of other kinds, which is no first start
            return None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.receipt = self._planned = None
        if checkpoint_id is not None:
            self._name = str(checkpoint_id)

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:  # Any: as DCP has it
        """What the newest readable checkpoint holds. It is the same on all ranks, so it has no parameter ``kwargs``.

        DCP would take that parameter as a sign of metadata of each rank, and try again with it after an error.
        """
        self._planned = self._search().load(lambda found: {"contents": self._contents(found)})["contents"]
        assert self._planned is not None
        return self._planned.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: ``read_metadata`` has read all that the plan needs."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        plan.storage_data = RankPlan((own_rank(),))
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        common = common_plan(plans)
        for plan in plans:
            plan.storage_data = common
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's part. All ranks read the same checkpoint, or all raise the same error."""
        ranks = plan.storage_data.ranks if isinstance(plan.storage_data, RankPlan) else ()
        session = session_of(ranks, timeout_seconds=self._rank_timeout_seconds)
        load = _Load(open_store(self._store), plan, planner, self._planned, self._verify)
        with session.lock:
            if session.peers is None:
                self.receipt = self._search().restore(lambda name: load.attempt(name, lambda _: None))
            else:
                together = RankedRestore(session.peers, load.attempt)
                lead = session.peers.is_leader
                self.receipt = together.lead(self._search().restore) if lead else together.follow()
        if self.receipt is None:
            raise CheckpointMissing(f"the checkpoint in {open_store(self._store).url} was deleted before it was read")
        session.clock.observe(self.receipt.created_at)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return ArchiveWriter.validate_checkpoint_id(checkpoint_id)

    def _search(self) -> CheckpointSearch:
        name = self._name
        if name is not None:
            name = f"{self.prefix}/{name}" if self.prefix and not name.startswith(f"{self.prefix}/") else name
            check_name(name)
        return CheckpointSearch(open_store(self._store), self.prefix, kind=self._kind, name=name)

    def _contents(self, name: str) -> ArchiveContents:
        with Archive(open_store(self._store).open(name), verify=self._verify) as archive:
            return ArchiveContents.of(archive, RestoreDestinations(archive), is_flat=_is_flat(archive))


def _is_flat(archive: Archive) -> bool:
    facts = archive.manifest.metadata.get(FACTS)
    return not (isinstance(facts, dict) and facts.get("is_flat") is False)


class _Load:
    """One load of one rank, tried on one archive after another until all ranks have read theirs."""

    def __init__(
        self, store: Store, plan: LoadPlan, planner: LoadPlanner, planned: ArchiveContents | None, verify: Verify
    ) -> None:
        self._store = store
        self._plan = plan
        self._planner = planner
        self._planned = planned
        self._verify: Verify = verify
        self._started = time.perf_counter()

    def attempt(self, name: str, agree: Callable[[str], None]) -> RestoreReceipt:
        """Read the archive of that name. ``agree`` raises on all ranks if one of them cannot go on."""
        with Archive(self._store.open(name), verify=self._verify) as archive:
            destinations = RestoreDestinations(archive)
            contents = ArchiveContents.of(archive, destinations, is_flat=_is_flat(archive))
            finish = [self._place(item, contents, destinations) for item in self._plan.items]
            agree(archive.seal)
            try:
                destinations.read()
                agree(archive.seal)
            except DamagedArchive as error:
                error.touched = True
                raise
            for step in (*destinations.copies, *finish):
                step()
            restored = Restored(_parts(self._plan, contents), missing=(), unexpected=())
            seconds = time.perf_counter() - self._started
            return RestoreReceipt.of(archive, restored, name=name, url=self._store.url, seconds=seconds)

    def _place(
        self, item: ReadItem, contents: ArchiveContents, destinations: RestoreDestinations
    ) -> Callable[[], object]:
        """Say where the bytes of an item go; returns what is left to do when they are there."""
        name = item.storage_index.fqn
        if item.type is LoadItemType.BYTE_IO:
            if name not in contents.values:
                raise self._mismatch(name, "no such value")
            value = replace_leaves(contents.values[name], lambda reference: _make(destinations, reference))
            return lambda: self._planner.load_bytes(item, _as_saved(value))
        stored = contents.tensors.get(name)
        if stored is None or (self._planned is not None and self._planned.tensors[name].shape != stored.shape):
            raise self._mismatch(name, "no tensor of this name and shape")
        target = self._planner.resolve_tensor(item)
        _read_into(target.detach(), item, stored, destinations)
        return lambda: self._planner.commit_tensor(item, target)

    def _mismatch(self, name: str, what: str) -> RestoreMismatch:
        return RestoreMismatch(
            f"the checkpoint has {what}: {name!r}. The load was planned for a newer checkpoint, which is damaged, and "
            "this one has another structure. Load it by its name, into a state of its structure",
            missing=(name,),
        )


def _read_into(target: torch.Tensor, item: ReadItem, stored: StoredTensor, destinations: RestoreDestinations) -> None:
    first = item.storage_index.offset or (0,) * len(stored.shape)
    offsets = tuple(a + b for a, b in zip(first, item.storage_offsets, strict=True))
    box = Box(offsets, tuple(item.lengths))
    if not box.elements:
        return
    if tuple(target.shape) != box.sizes:
        raise RestoreMismatch(f"{item.dest_index.fqn}: the target is {list(target.shape)}, the plan {list(box.sizes)}")
    place = target
    if target.dtype != stored.dtype:  # as DCP does: converted
        place = torch.empty(box.sizes, dtype=stored.dtype)
        destinations.copies.append(lambda: target.copy_(place))
    destinations.use_box(box_runs(stored.shape, box, stored.dtype.itemsize), place, stored.tensor.offset)


def _make(destinations: RestoreDestinations, reference: TensorReference) -> Any:
    return destinations.make(reference, *destinations.find(reference))


def _as_saved(value: Any) -> io.BytesIO:
    """A value in the form that DCP's planners take. These bytes are made and read in this process alone."""
    content = io.BytesIO()
    torch.save(value, content)
    content.seek(0)
    return content


def _parts(plan: LoadPlan, contents: ArchiveContents) -> tuple[RestoredPart, ...]:
    """What this rank read, by the first part of the names."""
    counts: dict[str, tuple[int, int]] = {}
    for item in plan.items:
        name = item.storage_index.fqn
        path = contents.paths.get(name, (name,))
        part = str(path[0]) if len(path) > 1 else "state"
        tensors, size = counts.get(part, (0, 0))
        if item.type is LoadItemType.TENSOR:
            tensors, size = tensors + 1, size + contents.tensors[name].dtype.itemsize * item.lengths.numel()
        counts[part] = tensors, size
    return tuple(RestoredPart(part, "state_dict", tensors, size) for part, (tensors, size) in counts.items())
