"""A live run: one that the server has at hand, loaded in the worker or about to be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chockstone.engine.runs.lanes import Lane
from chockstone.engine.runs.operations import Operation
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.engine.runs.used_seq_ids import UsedSeqIds

Json = Mapping[str, Any]  # Any: plain JSON


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run is made with; enough to make it again."""

    run_id: str
    session_id: str
    model_seq_id: int
    owner: str
    base_model: str
    spec: Json
    optimizer: Json
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    project_id: str | None = None
    birth: str = ""  # tells it from a run that had its id before, whose checkpoints are not its own

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, found: Json) -> RunFacts:
        return cls(**{name: found[name] for name in cls.__slots__})


@dataclass(slots=True)
class ReplayBacklog:
    """What a replay would have to do over: all since the newest recovery archive."""

    steps: int = 0
    seconds: float = 0.0
    operations: int = 0


@dataclass(slots=True, eq=False)
class Run:
    facts: RunFacts
    lane: Lane
    journal: RunJournal
    numbers: UsedSeqIds = field(default_factory=UsedSeqIds)
    generation: int = 0  # of the worker that has it as it was after its last operation; 0: none
    problem: str | None = None  # why it cannot go on; its operations are told so
    hold: str | None = None  # why its operations wait, and will until the server is started in another way
    pause: str | None = None  # why its operations wait at this moment
    is_closing: bool = False  # takes no more operations
    is_archiving: bool = False
    steps: int = 0  # of its optimizer, as the worker told them last
    last_save_bytes: int = 0
    debt: ReplayBacklog = field(default_factory=ReplayBacklog)
    archives: list[int] = field(default_factory=list)  # up to which operation each recovery archive goes, oldest first
    seals: dict[str, str] = field(default_factory=dict)  # of recovery archives, by name, as far as they are known
    restore_reason: str = "the server was started again"  # why the present worker does not have it, if it does not
    lost: int = 0  # acknowledged operations that its journal did not have any more; until a receipt says so
    restore_deaths: int = 0  # of workers, while they brought it back
    used_at: float = 0.0  # by a monotonic clock
    _writing: set[Operation] = field(default_factory=set)  # saves that go on while the lane does
    _written: asyncio.Event = field(default_factory=asyncio.Event)

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
    def is_stuck(self) -> bool:
        """Whether it does nothing that it is asked, in this life of the server."""
        return self.problem is not None or self.hold is not None

    @property
    def is_writing(self) -> bool:
        return bool(self._writing)

    @property
    def last_begun(self) -> int:
        """The last operation that was begun; a recovery archive that is taken now goes up to it."""
        begun = (each.sequence for each in reversed(self.journal.operations) if each.is_begun)
        return next(begun, self.archives[-1] if self.archives else 0)

    def writes(self, operation: Operation) -> None:
        """It has let the run go on, and is not finished."""
        self._writing.add(operation)

    def wrote(self, operation: Operation) -> None:
        self._writing.discard(operation)
        if not self._writing:
            self._written.set()
            self._written = asyncio.Event()

    async def all_written(self) -> None:
        while self._writing:
            await self._written.wait()

    def head(self) -> dict[str, Any]:
        """For the journal: what it takes to bring the run back."""
        return {"run": self.facts.to_json(), "numbers": self.numbers.to_json(), "seals": dict(self.seals)}
