"""Recovery: a worker that does not have a run is given it, as it was.

The newest recovery archive that is whole, then all that the journal has after it, in its order. One
that cannot be read now is waited for. One path for a worker that died, a server that was killed, and a
run that was parked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from chockstone.backends.protocol import RunSpec, Worker, WorkerLost
from chockstone.catalog import Catalog, CatalogError
from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, StoreError
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.engine.config import EngineLimits
from chockstone.engine.futures import Result
from chockstone.engine.journal.journal import JournalDamaged
from chockstone.engine.runs.crash_suspects import CrashSuspects
from chockstone.engine.runs.execution import Execution
from chockstone.engine.runs.operations import CHANGES_STATE, Operation, OperationOutcome, digest_of
from chockstone.engine.runs.recovery_archives import RecoveryArchive, RecoveryArchives
from chockstone.engine.runs.run import ReplayBacklog, Run
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import Code, RequestError, ServerFailure
from chockstone.wire.model_names import ModelName

log = logging.getLogger(__name__)
Finish = Callable[[Run, Operation, OperationOutcome], Awaitable[None]]
_VERDICTS: Final[Mapping[Code | None, Verdict]] = {  # anything else was the worker's own trouble: LOCAL
    "damaged": Verdict.CORRUPT,
    "missing": Verdict.CORRUPT,
    "newer": Verdict.INCOMPATIBLE,
    "denied": Verdict.DENIED,
    "unreachable": Verdict.UNREACHABLE,
}
_PASSING: Final = {Verdict.DENIED, Verdict.UNREACHABLE}  # of the store, while this server runs


class Halted(Exception):
    """The server stops, or cannot serve this run as it was started: what waits goes on waiting."""


class Postponed(Exception):
    """The store does not say what it has, or does not let us: nothing is decided, and it is asked again."""


class NotRecovered(ServerFailure):
    """The run cannot be brought back to where it was: never, or not by this server."""

    def __init__(self, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(slots=True)
class RecoveryReceipt:
    """How a run came back."""

    reason: str
    archive: str | None = None
    skipped: list[dict[str, str]] = field(default_factory=list)  # archives that could not be read, and why
    replayed: int = 0
    redone: int = 0  # without a result before
    matched: int = 0
    mismatched: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    lost: int = 0  # acknowledged operations that the journal does not have any more


class RunRecovery:
    def __init__(
        self,
        backend: Worker,
        catalog: Catalog,
        storage: ArchiveStorage,
        execution: Execution,
        archives: RecoveryArchives,
        limits: EngineLimits,
        suspects: CrashSuspects,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._backend = backend
        self._catalog = catalog
        self._storage = storage
        self._execution = execution
        self._archives = archives
        self._limits = limits
        self._suspects = suspects
        self._now = now
        self._turn = asyncio.Lock()  # one at a time: two would both take twice as long
        self.is_stopping = False
        self.finish: Finish  # of an operation that had no result yet; set by whoever keeps the results

    async def restore(self, live: Run, before: Operation | None) -> None:
        """Have the present worker hold the run as it was before the operation; nothing to do if it does.

        Raises WorkerLost, NotRecovered, Postponed, and Halted, also when there will be no worker any more.
        """
        await self._wait_for_worker(live)
        if live.generation == self._backend.generation:
            return
        base_model = ModelName.parse(live.base_model).base
        if base_model not in self._backend.environment.get("models", {base_model: ""}):
            raise self._hold(
                live,
                f"base model {base_model!r} is not served at the moment: start the server with "
                f"--model {base_model}=DIRECTORY, and run {live.run_id!r} goes on where it was",
            )
        if before is not None and before.word == "open":
            return  # it has not begun yet
        await live.all_written()  # what the last worker was writing ends, one way or another
        live.pause = "the run waits for its turn to be recovered"
        async with self._turn:
            if not live.journal.is_kept:
                raise NotRecovered(
                    f"run {live.run_id!r} is not loaded any more: {live.restore_reason}, and no journal is kept. "
                    "Resume it with create_training_client_from_state_with_optimizer and its last checkpoint."
                )
            try:
                await self._bring_back(live, before)
            except BaseException as error:
                live.generation = 0  # what the worker has of it is not all
                if isinstance(error, StoreError):
                    raise Postponed(f"the store of run {live.run_id!r} cannot be used now: {error}") from error
                raise
            finally:
                live.pause = None

    @staticmethod
    def _hold(live: Run, reason: str) -> Halted:
        live.hold = reason
        log.error("run waits run=%s reason=%s", live.run_id, reason)
        return Halted(reason)

    async def _wait_for_worker(self, live: Run) -> None:
        if not self._backend.is_ready:
            live.pause = "the worker is being started, and the models are being loaded"
        try:
            await self._backend.ready()
        except WorkerLost as error:  # none will ever be: the server ends, and the next one does what this one has not
            raise Halted from error
        finally:
            live.pause = None

    async def _bring_back(self, live: Run, before: Operation | None) -> None:
        started = time.perf_counter()
        receipt = RecoveryReceipt(live.restore_reason)
        live.pause = "the run is being recovered"
        through = await self._load_newest(live, receipt)
        for each in receipt.skipped:
            log.warning("recovery archive passed over archive=%s error=%s", each["archive"], each["reason"])
        live.debt = ReplayBacklog()
        _refuse_gaps(live, through)
        receipt.lost = live.lost
        if live.lost:
            receipt.notes.append(f"the journal had lost its end: {live.lost} acknowledged operations are missing")
        await self._give_up_results(live, through)
        pending = [
            operation
            for operation in live.journal.operations
            if operation.sequence > through and (before is None or operation.sequence < before.sequence)
        ]
        if before is None:
            pending = [operation for operation in pending if operation.is_begun]
        for number, operation in enumerate(pending):
            if self.is_stopping:
                raise Halted
            live.pause = f"the run is being recovered: {number} of {len(pending)} operations are replayed"
            await self._replay(live, operation, receipt)
        receipt.seconds = time.perf_counter() - started
        live.restore_deaths = 0
        await self._report(live, receipt)

    async def _load_newest(self, live: Run, receipt: RecoveryReceipt) -> int:
        """Up to which operation the worker has the run now; 0: no archive is whole, and it has nothing yet."""
        generation = self._backend.generation
        candidates = await self._archives.candidates(live.run_id)
        walk = WalkBack(candidates)
        then: Mapping[str, Any] = {}
        for candidate in walk:
            await self._backend.open_run(
                live.run_id,
                owner=live.owner,
                base_model=live.base_model,
                spec=RunSpec.from_json(live.spec),
                generation=generation,
            )
            try:
                seal = live.seals.get(candidate.name)
                await self._backend.load(
                    live.run_id, candidate.name, with_optimizer=True, seal=seal, generation=generation
                )
                live.steps, then = await self._inspect(live, candidate)
            except WorkerLost:
                raise
            except RequestError as error:
                walk.reject(_VERDICTS.get(error.code, Verdict.LOCAL), str(error))
            except CheckpointError as error:
                walk.failed(error)
            else:
                walk.accept()
        receipt.skipped = [{"archive": look.candidate.name, "reason": look.reason} for look in walk.skipped]
        if walk.choice is not None:
            chosen = walk.choice.candidate
            live.generation = generation
            receipt.archive = chosen.name
            receipt.notes += differences(then, self._backend.environment, live.base_model)
            live.archives = sorted(each.through for each in candidates if each.through <= chosen.through)
            return chosen.through
        return await self._without_archive(live, receipt, walk)

    async def _without_archive(self, live: Run, receipt: RecoveryReceipt, walk: WalkBack[RecoveryArchive]) -> int:
        """0, if the journal has everything; else it says why the run is not brought back."""
        if walk.blocked is not None and walk.blocked.verdict in _PASSING:
            raise Postponed(f"recovery archive {walk.blocked.candidate.name!r} cannot be read: {walk.blocked.reason}")
        first = live.journal.first_of_all()
        then: Mapping[str, Any] = {}
        if first is not None and first.trace is not None:
            then = first.trace.facts.get("environment", {})
        elif walk.judged:
            with suppress(CheckpointError):  # as far as it can be read
                _, then = await self._inspect(live, walk.judged[0].candidate)
        if _is_another_model(then, self._backend.environment, live.base_model):
            base_model = ModelName.parse(live.base_model).base
            raise self._hold(
                live,
                f"base model {base_model!r} is not the one that run {live.run_id!r} was trained on: start the "
                f"server with --model {base_model}=DIRECTORY of that one, and it goes on where it was",
            )
        reasons = "; ".join(each["reason"] for each in receipt.skipped) or "there is none"
        if walk.blocked is not None:  # it may be good, and loads another time
            raise NotRecovered(
                f"the newest recovery archive of run {live.run_id!r} cannot be loaded by this server: {reasons}. "
                "Nothing of it is lost; start the server again when that is mended.",
                is_final=False,
            )
        if first is None:
            raise NotRecovered(
                f"no recovery archive of run {live.run_id!r} can be read, and its journal does not go back to its "
                f"beginning: {reasons}. Resume it from its last checkpoint.",
                is_final=walk.ending is Ending.EXHAUSTED,  # else the store has none, as when a disk is not mounted
            )
        receipt.notes += differences(then, self._backend.environment, live.base_model)
        live.archives = []
        return 0

    async def _inspect(self, live: Run, archive: RecoveryArchive) -> tuple[int, Mapping[str, Any]]:
        """After how many steps it was taken, and in which environment. Raises CheckpointError."""
        with await self._storage.open(archive.name, seal=live.seals.get(archive.name)) as opened:
            told = opened.manifest.metadata
            if (told.get("run_id"), told.get("through")) != (live.run_id, archive.through):
                raise DamagedArchive(
                    f"another archive is in its place: it holds run {told.get('run_id')!r} up to operation "
                    f"{told.get('through')!r}"
                )
            return opened.manifest.step or 0, told.get("environment", {})

    async def _give_up_results(self, live: Run, through: int) -> None:
        """What an archive holds is not done again, so a result that was damaged in the journal stays lost."""
        for operation in live.journal.operations:
            if operation.sequence <= through and operation.trace is None:
                lost = ServerFailure(f"the run has done {operation.word}, but its result was lost in a damaged journal")
                await self.finish(live, operation, OperationOutcome(Result.failed(lost)))

    async def _replay(self, live: Run, operation: Operation, receipt: RecoveryReceipt) -> None:
        trace = operation.trace
        if trace is not None and trace.is_failure:
            return  # it left nothing behind
        if operation.damage is not None:
            raise NotRecovered(
                f"the journal of run {live.run_id!r} is damaged at operation {operation.sequence}: {operation.damage}. "
                "What came after cannot be brought back; resume from its last checkpoint."
            )
        if trace is not None and operation.word not in CHANGES_STATE and not await self._is_missing(operation):
            return
        if trace is None:
            is_poison = operation.deaths >= self._limits.deaths or operation.attempts >= self._limits.attempts
            if is_poison and operation.word not in CHANGES_STATE:
                times = max(operation.deaths, operation.attempts)
                poison = f"{operation.word} killed the worker {times} times, so it is not tried again"
                await self.finish(live, operation, OperationOutcome(Result.failed(ServerFailure(poison))))
                return
            live.journal.attempt(operation)
        try:
            async with self._suspects.alone() if trace is None and operation.deaths else nullcontext():
                outcome = await self._execution.execute(live, operation)
        except WorkerLost as error:
            operation.deaths += trace is None and error.code != "unsent"
            raise
        except (RequestError, JournalDamaged) as error:
            if trace is None and isinstance(error, RequestError):
                await self.finish(live, operation, OperationOutcome(Result.failed(error)))
                return
            if isinstance(error, RequestError) and _VERDICTS.get(error.code) in _PASSING:
                raise Postponed(f"operation {operation.sequence} ({operation.word}) waits: {error}") from error
            raise NotRecovered(
                f"operation {operation.sequence} ({operation.word}) of run {live.run_id!r} cannot be replayed: {error}",
                is_final=isinstance(error, JournalDamaged),  # else it may be another time, or with more memory
            ) from error
        if trace is None:
            receipt.redone += 1
            await self.finish(live, operation, outcome)
            return
        receipt.replayed += 1
        if operation.word in ("pass", "optim_step"):
            is_same = digest_of(outcome.result.body) == trace.digest
            receipt.matched += is_same
            receipt.mismatched += not is_same

    async def _is_missing(self, operation: Operation) -> bool:
        """Whether weights to sample from, which are written behind, did not get as far."""
        if operation.word != "snapshot" or operation.trace is None:
            return False
        archive = operation.trace.facts.get("archive")
        return archive is not None and not await self._storage.look_up([archive])

    async def _report(self, live: Run, receipt: RecoveryReceipt) -> None:
        if receipt.mismatched:
            receipt.notes.append(
                f"{receipt.mismatched} of {receipt.replayed} results differ from those that were given before"
            )
        log.info(
            "run recovered run=%s reason=%r archive=%s replayed=%d redone=%d matched=%d mismatched=%d seconds=%.2f%s",
            live.run_id,
            receipt.reason,
            receipt.archive,
            receipt.replayed,
            receipt.redone,
            receipt.matched,
            receipt.mismatched,
            receipt.seconds,
            "".join(f" note={note!r}" for note in receipt.notes),
        )
        try:
            await self._catalog.recoveries.add(
                run_id=live.run_id,
                owner=live.owner,
                at=self._now(),
                reason=receipt.reason,
                archive=receipt.archive,
                skipped=receipt.skipped,
                replayed=receipt.replayed,
                redone=receipt.redone,
                matched=receipt.matched,
                mismatched=receipt.mismatched,
                seconds=receipt.seconds,
                notes=receipt.notes,
                lost=receipt.lost,
            )
            live.lost = 0
        except CatalogError as error:
            log.warning("receipt not kept run=%s error=%s", live.run_id, error)


def _refuse_gaps(live: Run, through: int) -> None:
    """Every operation names the one before it. Raises NotRecovered where that is neither there nor in the archive."""
    before = through
    for operation in live.journal.operations:
        if operation.sequence <= through:
            continue
        if operation.after is not None and operation.after > before:
            raise NotRecovered(
                f"the journal of run {live.run_id!r} lacks operations between {before} and {operation.sequence}: a "
                "file of it is missing or is an older copy. Put it back and start the server again, or resume the run "
                "from its last checkpoint.",
                is_final=False,
            )
        before = operation.sequence


def differences(then: Mapping[str, Any], now: Mapping[str, Any], base_model: str) -> list[str]:
    """In words: what is not as it was, so that numbers may differ."""
    found = [
        f"{name} was {then[name]!r} and is {now.get(name)!r}; numbers may differ"
        for name in then
        if name != "models" and then[name] != now.get(name)
    ]
    if _is_another_model(then, now, base_model):
        found.append(f"base model {base_model!r} has other weights than it had; numbers differ")
    return found


def _is_another_model(then: Mapping[str, Any], now: Mapping[str, Any], base_model: str) -> bool:
    name = ModelName.parse(base_model).base
    before, after = (each.get("models", {}).get(name) for each in (then, now))
    return before is not None and before != after
