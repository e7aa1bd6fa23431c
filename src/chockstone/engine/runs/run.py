"""A live run: a run that this server has in memory, with its lane, its journal and its state.

``Run`` is the only writer of its fields: other files call its methods. ``LiveRuns`` holds all live runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from chockstone.catalog import RunProgress
from chockstone.engine.history.run_history import RunHistory
from chockstone.engine.runs.lanes import Lane
from chockstone.engine.runs.operations import Operation
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.engine.runs.used_seq_ids import UsedSeqIds
from chockstone.wire.failures import ServerFailure

Json = Mapping[str, Any]  # Any: plain JSON
PARKED: Final = "it was parked"  # a reason to recover a run
MOVED: Final = "it was moved to another replica"  # another
RESTARTED: Final = "the server was started again"  # another
_KEPT_ARCHIVES: Final = 2


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run is created with; enough to create it again."""

    run_id: str
    session_id: str
    model_seq_id: int
    owner: str
    base_model: str
    spec: Json
    optimizer: Json
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    project_id: str | None = None
    birth: str = ""  # random; differs from that of an earlier run with the same id, whose checkpoints are not its own

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, found: Json) -> RunFacts:
        return cls(**{name: found[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Ready:
    """Operations execute as they come; the run is recovered first if the worker does not have it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Operations wait for a worker, the catalog or the disk."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recovering:
    """Operations wait until the run is rebuilt in the worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """Operations wait until the server is restarted with other options."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Operations fail with the reason."""

    reason: str


RunState = Ready | Waiting | Recovering | Held | Lost


@dataclass(frozen=True, slots=True)
class ReplayBacklog:
    """What a recovery would have to replay: everything since the newest recovery archive."""

    steps: int = 0
    seconds: float = 0.0
    operations: int = 0

    def __add__(self, other: ReplayBacklog) -> ReplayBacklog:
        return ReplayBacklog(self.steps + other.steps, self.seconds + other.seconds, self.operations + other.operations)


def journal_head(
    facts: RunFacts, used_seq_ids: UsedSeqIds, seals: Mapping[str, str], progress: RunProgress | None = None
) -> dict[str, Any]:
    """The first record of each journal segment: what it takes to recover the run."""
    head = {"run": facts.to_json(), "numbers": used_seq_ids.to_json(), "seals": dict(seals)}
    if progress is None:
        return head
    known = {"steps": progress.steps, "last_loss": progress.last_loss, "parent": progress.parent}
    return {**head, "progress": known}  # trained tokens have a key of their own


def progress_of(found: Json | None) -> RunProgress | None:
    """The progress in a journal's head; None if an earlier version wrote it."""
    return None if found is None else RunProgress(found["steps"], found["last_loss"], found["parent"])


class Run:
    def __init__(
        self,
        facts: RunFacts,
        journal: RunJournal,
        history: RunHistory,
        used_seq_ids: UsedSeqIds | None = None,
        *,
        seals: Mapping[str, str] | None = None,
        progress: RunProgress | None = None,
        recovery_reason: str = RESTARTED,
        used_at: float = 0.0,
    ) -> None:
        self.facts = facts
        self.journal = journal
        self.history = history
        self.lane = Lane()
        self.used_seq_ids = used_seq_ids or UsedSeqIds()
        self.seals = dict(seals or {})  # of recovery archives, by name, as far as they are known
        self.state: RunState = Ready()
        self.replica = 0  # whose calls it gets, if the worker has replicas
        self.is_placed = False  # else the next recovery chooses a replica
        self.generation = 0  # of the worker that has the run as its last operation left it; 0: none has
        self.recovery_reason = recovery_reason  # why the present worker does not have it, if it does not
        self.recovery_deaths = 0  # workers that died while they recovered it
        self.lost_operations = 0  # acknowledged ones that the journal lacks, until a receipt says so
        self.is_closing = False  # takes no more operations
        self.is_archiving = False
        self.backlog = ReplayBacklog()
        self.archives: list[int] = []  # the last operation that each recovery archive holds, oldest first
        known = progress or RunProgress()
        self.steps = known.steps or 0  # of its optimizer, as the worker last reported them
        self.last_loss = known.last_loss  # of its last forward_backward
        self.parent = known.parent  # path of the checkpoint of another run that was loaded last
        self._was_loaded = False  # in a worker of this server
        self.last_save_bytes = 0
        self.used_at = used_at  # by a monotonic clock
        self._backlog_of_archive = ReplayBacklog()  # what the archive that is being written covers
        self._saves: set[Operation] = set()  # released ones that have not ended
        self._under_way: dict[Operation, float] = {}  # submitted ones that have not ended → when, monotonic
        self._saves_ended = asyncio.Event()

    @property
    def run_id(self) -> str:
        return self.facts.run_id

    @property
    def session_id(self) -> str:
        return self.facts.session_id

    @property
    def owner(self) -> str:
        return self.facts.owner

    @property
    def base_model(self) -> str:
        return self.facts.base_model

    @property
    def spec(self) -> Json:
        return self.facts.spec

    @property
    def optimizer(self) -> Json:
        return self.facts.optimizer

    @property
    def is_lost(self) -> bool:
        return isinstance(self.state, Lost)

    @property
    def is_held(self) -> bool:
        return isinstance(self.state, Held)

    @property
    def is_stuck(self) -> bool:
        """Whether this server will not execute its operations."""
        return self.is_lost or self.is_held

    @property
    def waits_for(self) -> str | None:
        """Why its operations wait, if they do."""
        return self.state.reason if isinstance(self.state, Waiting | Recovering | Held) else None

    @property
    def is_saving(self) -> bool:
        return bool(self._saves)

    @property
    def last_begun(self) -> int:
        """Sequence of the last operation that was begun; a recovery archive that is written now holds up to it."""
        begun = (each.sequence for each in reversed(self.journal.operations) if each.is_begun)
        return next(begun, self.archives[-1] if self.archives else 0)

    @property
    def progress(self) -> RunProgress | None:
        """None while the run is recovered, and before: the catalog knows more."""
        if isinstance(self.state, Recovering) or not self._was_loaded:
            return None
        return RunProgress(self.steps, self.last_loss, self.parent, self.journal.trained.tokens)

    @property
    def under_way(self) -> Mapping[Operation, float]:
        """Operations that wait or run, in their order, and since when, by a monotonic clock."""
        return self._under_way

    def head(self) -> dict[str, Any]:
        return journal_head(
            self.facts, self.used_seq_ids, self.seals, RunProgress(self.steps, self.last_loss, self.parent)
        )

    def wait(self, reason: str) -> None:
        self._set(Waiting(reason))

    def begin_recovery(self, progress: str) -> None:
        self._set(Recovering(progress))

    def resume(self) -> None:
        self._set(Ready())

    def hold(self, reason: str) -> None:
        self._set(Held(reason))

    def lose(self, reason: str) -> None:
        if not self.is_lost:
            self.state = Lost(reason)

    def _set(self, state: RunState) -> None:
        """A held run stays held until it is lost, and a lost run stays lost."""
        if not self.is_stuck:
            self.state = state

    def refuse_if_lost(self) -> None:
        if isinstance(self.state, Lost):
            raise ServerFailure(self.state.reason)

    def note_submitted(self, operation: Operation, *, at: float) -> None:
        """``at``: by a monotonic clock."""
        self._under_way[operation] = at

    def note_settled(self, operation: Operation) -> None:
        self._under_way.pop(operation, None)

    def touch(self, now: float) -> None:
        """A client uses it."""
        self.used_at = now

    def begin_closing(self) -> None:
        self.is_closing = True

    def cancel_closing(self) -> None:
        self.is_closing = False

    @property
    def is_suspect(self) -> bool:
        """Whether a worker died before while it ran one of the operations that have not ended, or recovered it."""
        return self.recovery_deaths > 0 or any(operation.deaths for operation in self._under_way)

    def place(self, replica: int) -> None:
        """Its calls go to this replica from now on. It must not be loaded in another one."""
        self.replica, self.is_placed = replica, True

    def unplace(self) -> None:
        """The next recovery may choose another replica."""
        self.is_placed = False

    def note_loaded(self, generation: int) -> None:
        """The worker of this generation has it as its last operation left it."""
        self.generation = generation
        self._was_loaded = True

    def note_unloaded(self, reason: str | None = None) -> None:
        """No worker has it any more. ``reason``: None keeps the one that was given before."""
        self.generation = 0
        self.recovery_reason = reason or self.recovery_reason

    def note_half_recovered(self) -> None:
        """A recovery failed: the worker has only a part of the run, and its progress is not known."""
        self.note_unloaded()
        self._was_loaded = False

    def note_worker_lost(self, reason: str) -> None:
        """Its worker died. The generation tells that from any other worker."""
        self.recovery_reason = reason

    def count_recovery_death(self) -> int:
        self.recovery_deaths += 1
        return self.recovery_deaths

    def end_recovery(self) -> None:
        self.recovery_deaths = 0

    def note_lost_operations(self, count: int) -> None:
        self.lost_operations = count

    def note_step(self, steps: int) -> None:
        """Its optimizer has made this many."""
        self.steps = steps

    def note_loss(self, loss: float) -> None:
        """``loss``: of a forward_backward, the mean over the weighted tokens."""
        self.last_loss = loss

    def note_parent(self, path: str) -> None:
        """A checkpoint of another run was loaded."""
        self.parent = path

    def note_save(self, size_bytes: int) -> None:
        self.last_save_bytes = size_bytes

    def add_to_backlog(self, *, steps: int = 0, seconds: float = 0.0) -> None:
        """One more operation to replay, or to pass over."""
        self.backlog += ReplayBacklog(steps, seconds, 1)

    def begin_replay(self, archives: list[int]) -> None:
        """It starts from the newest of these recovery archives, or from nothing."""
        self.archives = archives
        self.backlog = ReplayBacklog()

    def begin_archive(self) -> None:
        self.is_archiving = True
        self._backlog_of_archive, self.backlog = self.backlog, ReplayBacklog()

    def end_archive(self) -> None:
        self.is_archiving = False

    def note_archive_failed(self) -> None:
        self.backlog = self._backlog_of_archive + self.backlog

    def note_archive(self, name: str, *, seal: str, through: int) -> None:
        """A recovery archive of all up to ``through`` is written. Two are kept."""
        self.seals[name] = seal
        self.archives = [*self.archives, through][-_KEPT_ARCHIVES:]

    def note_archive_deleted(self, name: str) -> None:
        self.seals.pop(name, None)

    @property
    def replay_starts_after(self) -> int:
        """No replay starts before the older of the two recovery archives; 0: there are not two yet."""
        return self.archives[0] if len(self.archives) == _KEPT_ARCHIVES else 0

    def begin_save(self, operation: Operation) -> None:
        """The lane continues before it has ended."""
        self._saves.add(operation)

    def end_save(self, operation: Operation) -> None:
        self._saves.discard(operation)
        if not self._saves:
            self._saves_ended.set()
            self._saves_ended = asyncio.Event()

    async def all_saved(self) -> None:
        while self._saves:
            await self._saves_ended.wait()


class LiveRuns:
    """The live runs by id, and a lock for each id: runs are created, woken, parked and removed under it."""

    def __init__(self) -> None:
        self._live: dict[str, Run] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._are_all_woken = False
        self._unrecovered: dict[str, frozenset[str] | None] = {}  # archives that runs need which were not woken

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def get(self, run_id: str) -> Run | None:
        return self._live.get(run_id)

    def add(self, run: Run) -> None:
        self._live[run.run_id] = run
        self._unrecovered.pop(run.run_id, None)

    def remove(self, run: Run) -> None:
        """Does nothing if another run has the same id by now."""
        if self._live.get(run.run_id) is run:
            del self._live[run.run_id]

    def progress(self) -> dict[str, RunProgress]:
        """Of each run, as far as it is known."""
        return {run.run_id: progress for run in self if (progress := run.progress) is not None}

    def lock(self, run_id: str) -> asyncio.Lock:
        return self._locks.setdefault(run_id, asyncio.Lock())

    @property
    def are_all_woken(self) -> bool:
        """Whether the runs that an earlier server left active are live again."""
        return self._are_all_woken

    def note_all_woken(self) -> None:
        self._are_all_woken = True

    def note_unrecovered(self, run_id: str, needed: frozenset[str] | None) -> None:
        """An earlier server left the run active, and it is not woken. ``needed``: see ``needs``; None: not known."""
        self._unrecovered[run_id] = needed

    def note_ended(self, run_id: str) -> None:
        """No server wakes the run any more."""
        self._unrecovered.pop(run_id, None)

    def needs(self, archive: str) -> bool:
        """Whether a run would have to load this checkpoint again to recover. Until all are woken, one may."""
        if not self._are_all_woken or any(archive in run.journal.needed_archives() for run in self):
            return True
        return any(needed is None or archive in needed for needed in self._unrecovered.values())
