"""Saving together: one archive, of which every rank writes what it owns, and which rank 0 commits.

Rank 0 plans and begins the archive and tells the others how to join. Each rank writes its part; whoever is done or
fails says so, again and again, until all are done or one has failed. Only when the bytes of every rank are durable
does rank 0 write the ends of the archive and commit it, and only then does any rank call it saved. A rank that is
lost or fails at any point ends the save on all of them, with nothing visible.
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
from chockstone.checkpoints.ranks.ownership import Chunk, Ownership, plan_ownership, tail_start
from chockstone.checkpoints.ranks.part_write import FILE_THREADS, PartWrite
from chockstone.checkpoints.ranks.peers import Json, PeerFailed, Peers, pause_seconds
from chockstone.checkpoints.ranks.scratch_memory import ScratchMemory
from chockstone.checkpoints.ranks.share import RankShare, Received, file_runs
from chockstone.checkpoints.saving.handle import SavedCheckpoint
from chockstone.checkpoints.saving.image import render_ends
from chockstone.checkpoints.saving.job import SaveJob
from chockstone.checkpoints.saving.supply import Structure, Supply
from chockstone.checkpoints.saving.writer import CHUNK_BYTES, THREADS
from chockstone.checkpoints.stores.store import SharedSink, Sink


@dataclass(slots=True)
class RankedSaveCache:
    """From one save to the next: what every rank supplies, and writes, which is told and worked out again only when it
    has changed; and memory."""

    digests: list[str] = field(default_factory=list)
    runs: list[ByteRuns] = field(default_factory=list)
    scratch: ScratchMemory = field(default_factory=ScratchMemory)
    _planned: tuple[tuple[Layout, int, int, int], Ownership] | None = None

    def learn(self, runs: list[ByteRuns], digests: list[str]) -> None:
        self.runs, self.digests, self._planned = runs, digests, None

    def plan(
        self, layout: Layout, runs: list[ByteRuns], *, unit_bytes: int, shared_from: int, chunk_bytes: int
    ) -> Ownership:
        """``runs``: what was learnt, as offsets in the file."""
        asked = layout, unit_bytes, shared_from, chunk_bytes
        if self._planned is None or self._planned[0] != asked:
            ownership = plan_ownership(
                layout, runs, unit_bytes=unit_bytes, shared_from=shared_from, chunk_bytes=chunk_bytes
            )
            self._planned = asked, ownership
        return self._planned[1]


def decline(peers: Peers, error: BaseException) -> None:
    """In place of a save: this rank cannot take part, and the others are not to wait for it."""
    with suppress(Exception):  # the caller raises why it declines
        peers.confer(error=error)


@dataclass(frozen=True, slots=True)
class _Work:
    """What this rank has to do, once it is known."""

    layout: Layout
    runs: list[ByteRuns]  # of every rank, as offsets in the file
    ownership: Ownership
    share: RankShare
    part: PartWrite


class RankedSave:
    """One rank's part in one save. ``run`` returns when the archive is durable, or raises with nothing visible."""

    def __init__(self, job: SaveJob, peers: Peers, kept: RankedSaveCache) -> None:
        assert job.snapshot.supply is not None
        self._job = job
        self._peers = peers
        self._kept = kept
        self._supply: Supply = job.snapshot.supply
        self._archive: tuple[dict[str, bytes], Manifest, Layout, Sink] | None = None  # rank 0's
        self._shared: SharedSink | None = None  # every other's
        self._part: PartWrite | None = None
        self._may_be_committed = False  # where rank 0 was asked to, and did not answer

    def run(self) -> SavedCheckpoint:
        try:
            return self._run()
        except PeerFailed as failed:
            error = failed.error(otherwise=SaveFailed)
            raise SaveFailed(str(error)) if isinstance(error, RanksLost) else error from failed
        except RanksLost as lost:
            doubt = " Rank 0 may have committed it before; look for it." if self._may_be_committed else ""
            raise SaveFailed(f"the save of {self._job.request.name!r} failed: {lost}{doubt}") from lost
        finally:
            self._clean_up()

    def _run(self) -> SavedCheckpoint:
        plan = self._peers.confer(self._entry(), self._open)
        if "structure" in plan:
            self._refuse(plan["structure"])
        if not plan["is_known"]:
            told = self._peers.confer({"runs": _pack(self._supply.runs.rows.tobytes())}, _collect_runs)
            self._learn(told["runs"], plan["digests"])
        work = self._prepare(plan)
        self._exchange(work)
        self._await(work.part)
        self._may_be_committed = not self._peers.leads
        told = self._peers.confer(
            {
                "receipt": work.part.receipt,
                "digests": _pack(b"".join(digest for _, digest in sorted(work.part.digests.items()))),
            },
            lambda heard: self._commit(heard, work),
            error=self._abandonment(),
        )
        if self._archive is not None:
            _, manifest, layout, _ = self._archive
            return self._job.ended(manifest, layout, seal=told["seal"])
        seconds = time.perf_counter() - self._job.request.started
        return self._job.saved(work.layout.size, seconds, seal=told["seal"])

    def _entry(self) -> Json:
        supply, request = self._supply, self._job.request
        meant = {"name": request.name, "step": request.step}
        return {**meant, "structure": supply.structure_digest, "supply": supply.digest}

    def _open(self, heard: Sequence[Json]) -> Json:
        """On rank 0: begin the archive, if all mean the same."""
        names = sorted({said["name"] for said in heard})
        if len(names) > 1:
            raise SaveFailed(f"the ranks save different checkpoints at the same time: {', '.join(map(repr, names))}")
        steps = [said["step"] for said in heard]
        if any(step != steps[0] for step in steps):
            raise SaveFailed(f"the ranks save {names[0]!r} after different steps: {', '.join(map(repr, steps))}")
        if any(said["structure"] != heard[0]["structure"] for said in heard):
            return {"structure": self._supply.structure}
        digests = [said["supply"] for said in heard]
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
            "is_known": digests == self._kept.digests,
            "digests": digests,
        }

    def _refuse(self, structure: Sequence[Any]) -> None:
        """Have all hear who differs from rank 0, and where."""
        differs = _difference(self._supply.structure, structure)
        error = SaveFailed(f"the ranks do not save the same tensors: {differs}") if differs else None
        self._peers.confer(error=error)

    def _learn(self, packed: Sequence[str], digests: list[str]) -> None:
        """What every rank supplies."""
        rows = [np.frombuffer(_unpack(each), dtype=np.int64).reshape(-1, 4) for each in packed]
        self._kept.learn([ByteRuns(each) for each in rows], digests)

    def _prepare(self, plan: Json) -> _Work:
        """Join the archive. Raises on all ranks if one of them cannot; before this nothing was written."""
        error: BaseException | None = None
        work: _Work | None = None
        try:
            work = self._work(plan)
        except BaseException as trouble:  # noqa: BLE001  # raised below, when the others have heard of it
            error = trouble
        self._peers.confer(error=error)
        assert work is not None
        self._part = work.part
        work.part.start()
        return work

    def _work(self, plan: Json) -> _Work:
        job, rank = self._job, self._peers.rank
        members = [(str(name), int(size)) for name, size in plan["members"]]
        layout = plan_layout(members, manifest_bytes=plan["manifest_bytes"], block_bytes=plan["block_bytes"])
        runs = [file_runs(each, layout, job.snapshot.sections) for each in self._kept.runs]
        small, pace = plan["shared_from"], job.pace()
        ownership = self._kept.plan(
            layout,
            runs,
            unit_bytes=plan["unit_bytes"],
            shared_from=layout.members[small].header_offset if small < len(members) else layout.body_end,
            chunk_bytes=pace.step_bytes(CHUNK_BYTES),
        )
        files = None if self._archive is None else self._archive[0]
        share = RankShare(layout, job.snapshot, runs[rank], self._kept.scratch, mtime=plan["mtime"], files=files)
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
        """Send others what they own, round by round, and hand what comes in to the writer.

        It goes on when the writer has failed: others count on what this rank sends.
        """
        try:
            for chunks in work.ownership.rounds:
                self._exchange_round(work, chunks)
        except BaseException as error:  # noqa: BLE001  # recorded, and told to the others
            work.part.fail(error)
        work.part.end_offers()

    def _exchange_round(self, work: _Work, chunks: Sequence[Chunk]) -> None:
        rank, scratch = self._peers.rank, self._kept.scratch
        parts: dict[int, list[Bytes]] = {}  # for whom
        expected: list[tuple[Chunk, int, int, int]] = []  # with whose, and the first and last place in all it has
        for chunk in chunks:
            bounds = np.array([chunk.start, chunk.needed_to])
            for other, runs in enumerate(work.runs) if chunk.owner == rank else [(rank, work.runs[rank])]:
                first, last = map(int, runs.before(bounds))
                if first == last or other == chunk.owner:
                    continue
                if chunk.owner == rank:
                    expected.append((chunk, other, first, last))
                else:
                    parts.setdefault(chunk.owner, []).extend(work.share.taken(chunk.start, chunk.needed_to))
        sizes: dict[int, int] = {}
        for _, other, first, last in expected:
            sizes[other] = sizes.get(other, 0) + last - first
        lent: list[Bytes] = []

        def lend(size: int) -> Bytes:
            lent.append(scratch.lend(size))
            return lent[-1][:size]

        outgoing = {to: np.concatenate(some, out=lend(sum(map(len, some)))) for to, some in parts.items()}
        incoming = {other: lend(size) for other, size in sizes.items()}
        if not self._peers.exchange(outgoing, incoming):
            work.part.fail(SaveFailed("a rank was lost before it had sent its bytes"))
            return
        received: dict[Chunk, list[Received]] = {chunk: [] for chunk in chunks if chunk.owner == rank}
        for chunk, other, first, last in expected:
            content, incoming[other] = np.split(incoming[other], [last - first])
            received[chunk].append(Received(work.runs[other], first, content))
        for chunk, some in received.items():
            work.part.offer(chunk, some)
        for memory in lent:
            scratch.take_back(memory)

    def _await(self, part: PartWrite) -> None:
        """Until the part of every rank is durable; raises on all as soon as one has failed."""
        handle, started = self._job.handle, time.monotonic()
        while True:
            is_done = part.wait(pause_seconds(started))
            said = {"is_done": is_done, "hurry": handle._hurry.is_set()}
            heard = self._peers.confer(said, _look_round, error=part.error or self._abandonment())
            if heard["hurry"]:
                handle.hurry()  # a rank that takes its time keeps the one that waits
            if heard["is_done"]:
                return

    def _abandonment(self) -> SaveAbandoned | None:
        name = self._job.request.name
        is_abandoned = self._job.handle.is_abandoned()
        return SaveAbandoned(f"the save of {name!r} was abandoned; nothing of it is visible") if is_abandoned else None

    def _commit(self, heard: Sequence[Json], work: _Work) -> Json:
        """On rank 0, when everything but the ends of the archive is durable."""
        assert self._archive is not None
        _, manifest, layout, sink = self._archive
        digests = np.zeros((layout.block_count, DIGEST_BYTES), dtype=np.uint8)
        for rank, said in enumerate(heard):
            blocks = [block for chunk in work.ownership.of(rank) for block in chunk.blocks]
            digests[sorted(blocks)] = np.frombuffer(_unpack(said["digests"]), np.uint8).reshape(-1, DIGEST_BYTES)
        payload = manifest.encode(digests.tobytes(), layout)
        head, tail = render_ends(payload, layout, gap=work.part.remainder, mtime=manifest.mtime)
        sink.write_at(tail_start(layout), tail.data)
        sink.write_at(0, head.data)
        sink.settle([said["receipt"] for said in heard[1:]])
        self._job.commit(sink)
        return {"seal": hashlib.sha256(payload).hexdigest()}

    def _clean_up(self) -> None:
        if self._part is not None:
            self._part.stop()
        if self._archive is not None:
            self._archive[3].abort()  # harmless after a commit
        if self._shared is not None:
            self._shared.close()


def _collect_runs(heard: Sequence[Json]) -> Json:
    return {"runs": [said["runs"] for said in heard]}


def _look_round(heard: Sequence[Json]) -> Json:
    return {"is_done": all(said["is_done"] for said in heard), "hurry": any(said["hurry"] for said in heard)}


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
