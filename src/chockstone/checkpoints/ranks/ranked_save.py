"""Saves of several ranks: each rank writes the bytes of the archive that it owns, and rank 0 commits it.

Rank 0 plans and begins the archive and sends the others what they need to join. Each rank writes its part. The ranks
poll each other until all are done or one has failed. When the bytes of every rank are durable, rank 0 writes head and
tail of the archive and commits it; only then does any rank report it as saved. A rank that fails or is lost at any
point ends the save on all ranks, with nothing visible.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from chockstone.checkpoints.errors import RanksLost, SaveAbandoned, SaveFailed
from chockstone.checkpoints.format.byte_runs import ByteRuns
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.checkpoints.format.layout import Layout, plan_layout
from chockstone.checkpoints.format.manifest import DIGEST_BYTES, Manifest
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.ranks.buffer_pool import BufferPool
from chockstone.checkpoints.ranks.ownership import Chunk, Ownership, plan_ownership, tail_start
from chockstone.checkpoints.ranks.part_write import FILE_THREADS, PartWrite
from chockstone.checkpoints.ranks.peers import Json, PeerFailed, Peers, poll_seconds
from chockstone.checkpoints.ranks.share import RankShare, Received, file_runs
from chockstone.checkpoints.saving.copy_plan import CopyPlan, Structure
from chockstone.checkpoints.saving.handle import SavedCheckpoint
from chockstone.checkpoints.saving.image import render_ends
from chockstone.checkpoints.saving.job import SaveJob
from chockstone.checkpoints.saving.writer import CHUNK_BYTES, THREADS
from chockstone.checkpoints.stores.store import SharedSink, Sink


@dataclass(slots=True)
class RankedSaveCache:
    """Kept from save to save: which bytes each rank copies and which it writes, until they change; and buffers."""

    digests: list[str] = field(default_factory=list)
    runs: list[ByteRuns] = field(default_factory=list)
    buffers: BufferPool = field(default_factory=BufferPool)
    _planned: tuple[tuple[Layout, int, int, int], Ownership] | None = None

    def learn(self, runs: list[ByteRuns], digests: list[str]) -> None:
        self.runs, self.digests, self._planned = runs, digests, None

    def plan(
        self, layout: Layout, runs: list[ByteRuns], *, unit_bytes: int, shared_from: int, chunk_bytes: int
    ) -> Ownership:
        """``runs``: those of ``learn``, as offsets in the file."""
        asked = layout, unit_bytes, shared_from, chunk_bytes
        if self._planned is None or self._planned[0] != asked:
            ownership = plan_ownership(
                layout, runs, unit_bytes=unit_bytes, shared_from=shared_from, chunk_bytes=chunk_bytes
            )
            self._planned = asked, ownership
        return self._planned[1]


def decline(peers: Peers, error: BaseException) -> None:
    """Instead of a save: tell the other ranks that this one cannot take part, so that none waits for it."""
    with suppress(Exception):  # the caller raises its own error
        peers.gather_and_decide(error=error)


@dataclass(frozen=True, slots=True)
class _Work:
    """This rank's work in the save, once it is planned."""

    layout: Layout
    runs: list[ByteRuns]  # of every rank, as offsets in the file
    ownership: Ownership
    share: RankShare
    part: PartWrite


class RankedSave:
    """One rank's part in one save. ``run`` returns when the archive is durable, or raises with nothing visible."""

    def __init__(self, job: SaveJob, peers: Peers, cache: RankedSaveCache) -> None:
        assert job.snapshot.copy_plan is not None
        self._job = job
        self._peers = peers
        self._cache = cache
        self._copy_plan: CopyPlan = job.snapshot.copy_plan
        self._archive: tuple[dict[str, bytes], Manifest, Layout, Sink] | None = None  # rank 0's
        self._shared: SharedSink | None = None  # of every other rank
        self._part: PartWrite | None = None
        self._may_be_committed = False  # rank 0 was asked to commit and has not answered

    def run(self) -> SavedCheckpoint:
        try:
            return self._run()
        except PeerFailed as failed:
            error = failed.error(default=SaveFailed)
            raise SaveFailed(str(error)) if isinstance(error, RanksLost) else error from failed
        except RanksLost as lost:
            doubt = " Rank 0 may have committed it before; look for it." if self._may_be_committed else ""
            raise SaveFailed(f"the save of {self._job.request.name!r} failed: {lost}{doubt}") from lost
        finally:
            self._clean_up()

    def _run(self) -> SavedCheckpoint:
        plan = self._peers.gather_and_decide(self._entry(), self._open)
        if "structure" in plan:
            self._refuse(plan["structure"])
        if not plan["is_known"]:
            answer = self._peers.gather_and_decide({"runs": _pack(self._copy_plan.runs.rows.tobytes())}, _collect_runs)
            self._learn(answer["runs"], plan["digests"])
        work = self._prepare(plan)
        self._exchange(work)
        self._await(work.part)
        self._may_be_committed = not self._peers.is_leader
        answer = self._peers.gather_and_decide(
            {
                "receipt": work.part.receipt,
                "digests": _pack(b"".join(digest for _, digest in sorted(work.part.digests.items()))),
            },
            lambda messages: self._commit(messages, work),
            error=self._abandonment(),
        )
        if self._archive is not None:
            _, manifest, layout, _ = self._archive
            return self._job.ended(manifest, layout, seal=answer["seal"])
        seconds = time.perf_counter() - self._job.request.started
        return self._job.saved(work.layout.size, seconds, seal=answer["seal"])

    def _entry(self) -> Json:
        plan, request = self._copy_plan, self._job.request
        meant = {"name": request.name, "step": request.step}
        return {**meant, "structure": plan.structure_digest, "copy_plan": plan.digest}

    def _open(self, messages: Sequence[Json]) -> Json:
        """On rank 0: begin the archive, if all ranks save the same checkpoint."""
        names = sorted({message["name"] for message in messages})
        if len(names) > 1:
            raise SaveFailed(f"the ranks save different checkpoints at the same time: {', '.join(map(repr, names))}")
        steps = [message["step"] for message in messages]
        if any(step != steps[0] for step in steps):
            raise SaveFailed(f"the ranks save {names[0]!r} after different steps: {', '.join(map(repr, steps))}")
        if any(message["structure"] != messages[0]["structure"] for message in messages):
            return {"structure": self._copy_plan.structure}
        digests = [message["copy_plan"] for message in messages]
        files, manifest, layout = self._job.plan()
        sink = self._job.store.begin(self._job.request.name, layout.size)
        self._archive = files, manifest, layout, sink
        return {
            "members": manifest.members,
            "manifest_bytes": layout.manifest.size,
            "block_bytes": layout.block_bytes,
            "mtime": manifest.mtime,
            "shared_from": len(files),
            "unit_bytes": self._job.store.unit_bytes(layout.size),
            "ticket": sink.share(),
            "is_known": digests == self._cache.digests,
            "digests": digests,
        }

    def _refuse(self, structure: Sequence[Any]) -> None:
        """Raise on all ranks, naming the first tensor that differs from rank 0's."""
        differs = _difference(self._copy_plan.structure, structure)
        error = SaveFailed(f"the ranks do not save the same tensors: {differs}") if differs else None
        self._peers.gather_and_decide(error=error)

    def _learn(self, packed: Sequence[str], digests: list[str]) -> None:
        """Keep which bytes each rank copies."""
        rows = [np.frombuffer(_unpack(each), dtype=np.int64).reshape(-1, 4) for each in packed]
        self._cache.learn([ByteRuns(each) for each in rows], digests)

    def _prepare(self, plan: Json) -> _Work:
        """Join the archive. Raises on all ranks if one of them cannot; before this nothing was written."""
        error: BaseException | None = None
        work: _Work | None = None
        try:
            work = self._work(plan)
        except BaseException as raised:  # noqa: BLE001  # raised below, after the other ranks got it
            error = raised
        self._peers.gather_and_decide(error=error)
        assert work is not None
        self._part = work.part
        work.part.start()
        return work

    def _work(self, plan: Json) -> _Work:
        job, rank = self._job, self._peers.rank
        members = [(str(name), int(size)) for name, size in plan["members"]]
        layout = plan_layout(members, manifest_bytes=plan["manifest_bytes"], block_bytes=plan["block_bytes"])
        runs = [file_runs(each, layout, job.snapshot.sections) for each in self._cache.runs]
        small, pace = plan["shared_from"], job.pace()
        ownership = self._cache.plan(
            layout,
            runs,
            unit_bytes=plan["unit_bytes"],
            shared_from=layout.members[small].header_offset if small < len(members) else layout.body_end,
            chunk_bytes=pace.step_bytes(CHUNK_BYTES),
        )
        files = None if self._archive is None else self._archive[0]
        share = RankShare(layout, job.snapshot, runs[rank], self._cache.buffers, mtime=plan["mtime"], files=files)
        target: Sink | SharedSink
        finish: Callable[[], str] = str  # rank 0 makes durable what it wrote when it commits
        if self._archive is not None:
            target = self._archive[3]
        else:
            target = self._shared = job.store.join(job.request.name, layout.size, plan["ticket"])
            finish = target.finish
        chunks = ownership.of(rank)
        job.handle._plan(sum(min(chunk.end, tail_start(layout)) - chunk.start for chunk in chunks))
        part = PartWrite(
            share,
            layout,
            [chunk for chunk in ownership.pure if chunk.owner == rank],
            target,
            finish=finish,
            on_bytes=job.handle._advance,
            is_abandoned=job.handle.is_abandoned,
            pace=pace,
            threads=FILE_THREADS if plan["unit_bytes"] <= PAGE else THREADS,
        )
        return _Work(layout, runs, ownership, share, part)

    def _exchange(self, work: _Work) -> None:
        """Send other ranks the bytes that they own, round by round, and hand received bytes to the writer.

        It continues after the writer has failed, because other ranks wait for what this one sends.
        """
        try:
            for chunks in work.ownership.rounds:
                self._exchange_round(work, chunks)
        except BaseException as error:  # noqa: BLE001  # recorded, and sent to the other ranks
            work.part.fail(error)
        work.part.end_offers()

    def _exchange_round(self, work: _Work, chunks: Sequence[Chunk]) -> None:
        rank, buffers = self._peers.rank, self._cache.buffers
        parts: dict[int, list[Bytes]] = {}  # by the rank that they go to
        expected: list[
            tuple[Chunk, int, int, int]
        ] = []  # chunk, sender, first and last position among the sender's bytes
        for chunk in chunks:
            bounds = np.array([chunk.start, chunk.needed_to])
            for other, runs in enumerate(work.runs) if chunk.owner == rank else [(rank, work.runs[rank])]:
                first, last = map(int, runs.before(bounds))
                if first == last or other == chunk.owner:
                    continue
                if chunk.owner == rank:
                    expected.append((chunk, other, first, last))
                else:
                    parts.setdefault(chunk.owner, []).extend(work.share.bytes_between(chunk.start, chunk.needed_to))
        sizes: dict[int, int] = {}
        for _, other, first, last in expected:
            sizes[other] = sizes.get(other, 0) + last - first
        borrowed: list[Bytes] = []

        def borrow(size: int) -> Bytes:
            borrowed.append(buffers.acquire(size))
            return borrowed[-1][:size]

        outgoing = {to: np.concatenate(some, out=borrow(sum(map(len, some)))) for to, some in parts.items()}
        incoming = {other: borrow(size) for other, size in sizes.items()}
        if not self._peers.exchange(outgoing, incoming):
            work.part.fail(SaveFailed("a rank was lost before it had sent its bytes"))
            return
        received: dict[Chunk, list[Received]] = {chunk: [] for chunk in chunks if chunk.owner == rank}
        for chunk, other, first, last in expected:
            content, incoming[other] = np.split(incoming[other], [last - first])
            received[chunk].append(Received(work.runs[other], first, content))
        for chunk, some in received.items():
            work.part.offer(chunk, some)
        for memory in borrowed:
            buffers.release(memory)

    def _await(self, part: PartWrite) -> None:
        """Wait until the part of every rank is durable; raises on all ranks as soon as one has failed."""
        handle, started = self._job.handle, time.monotonic()
        while True:
            is_done = part.wait(poll_seconds(started))
            message = {"is_done": is_done, "hurry": handle._hurry.is_set()}
            messages = self._peers.gather_and_decide(message, _all_done, error=part.error or self._abandonment())
            if messages["hurry"]:
                handle.hurry()  # another rank waits for this save
            if messages["is_done"]:
                return

    def _abandonment(self) -> SaveAbandoned | None:
        name = self._job.request.name
        is_abandoned = self._job.handle.is_abandoned()
        return SaveAbandoned(f"the save of {name!r} was abandoned; nothing of it is visible") if is_abandoned else None

    def _commit(self, messages: Sequence[Json], work: _Work) -> Json:
        """On rank 0, when everything but the ends of the archive is durable."""
        assert self._archive is not None
        _, manifest, layout, sink = self._archive
        digests = np.zeros((layout.block_count, DIGEST_BYTES), dtype=np.uint8)
        for rank, message in enumerate(messages):
            blocks = [block for chunk in work.ownership.of(rank) for block in chunk.blocks]
            digests[sorted(blocks)] = np.frombuffer(_unpack(message["digests"]), np.uint8).reshape(-1, DIGEST_BYTES)
        payload = manifest.encode(digests.tobytes(), layout)
        head, tail = render_ends(payload, layout, gap=work.part.remainder, mtime=manifest.mtime)
        sink.write_at(tail_start(layout), tail.data)
        sink.write_at(0, head.data)
        sink.settle([message["receipt"] for message in messages[1:]])
        self._job.commit(sink)
        return {"seal": hashlib.sha256(payload).hexdigest()}

    def _clean_up(self) -> None:
        if self._part is not None:
            self._part.stop()
        if self._archive is not None:
            self._archive[3].abort()  # harmless after a commit
        if self._shared is not None:
            self._shared.close()


def _collect_runs(messages: Sequence[Json]) -> Json:
    return {"runs": [message["runs"] for message in messages]}


def _all_done(messages: Sequence[Json]) -> Json:
    return {
        "is_done": all(message["is_done"] for message in messages),
        "hurry": any(message["hurry"] for message in messages),
    }


def _difference(mine: Structure, leading: Sequence[Any]) -> str:
    """How this rank's tensors differ from those of rank 0, as JSON has them; empty if they do not."""
    for own, other in zip_longest(json.loads(json.dumps(mine)), leading):
        if own != other:
            return f"rank 0 has {_show(other)} where this one has {_show(own)}"
    return ""


def _show(facts: Sequence[Any] | None) -> str:
    if facts is None:
        return "nothing more"
    group, key, dtype, shape, aliases = facts
    also = f" (also {', '.join(aliases)})" if aliases else ""
    return f"{group}.{key} {dtype}{shape}{also}"


def _pack(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _unpack(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
