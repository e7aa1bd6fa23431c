"""Recovery: rebuilds a run in a worker from its newest recovery archive and the journal.

The newest undamaged recovery archive is loaded, then the journal after it is replayed in order. An archive that cannot
be read at the moment is waited for. A worker that died, a server that was killed and a parked run all take this path.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from chockstone.backends.protocol import RunSpec, Worker, WorkerLost, Workers
from chockstone.catalog import Catalog, CatalogError
from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, StoreError
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.engine.background import Shutdown
from chockstone.engine.config import EngineLimits
from chockstone.engine.journal.journal import JournalDamaged
from chockstone.engine.runs.commands import ForwardBackward, OpenRun, SnapshotWeights, StepOptimizer, api_name
from chockstone.engine.runs.executor import Executor
from chockstone.engine.runs.operations import Operation, OperationOutcome, digest_of
from chockstone.engine.runs.recovery.archives import RecoveryArchive, RecoveryArchives
from chockstone.engine.runs.recovery.run_placer import RunPlacer
from chockstone.engine.runs.run import MOVED, PARKED, RESTARTED, Run
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.telemetry import tracing
from chockstone.telemetry.declarations import RecoveryReason
from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.origin import working_for
from chockstone.wire.failures import Code, RequestError, ServerFailure
from chockstone.wire.model_names import ModelName

log = logging.getLogger(__name__)
Settle = Callable[[Run, Operation, OperationOutcome], Awaitable[None]]
_VERDICTS: Final[Mapping[Code | None, Verdict]] = {  # any other code is a failure of the worker: LOCAL
    "damaged": Verdict.CORRUPT,
    "missing": Verdict.CORRUPT,
    "newer": Verdict.INCOMPATIBLE,
    "denied": Verdict.DENIED,
    "unreachable": Verdict.UNREACHABLE,
}
_NAMED: Final = 20  # operations that a receipt names, of each sort
# Facts that environments of earlier versions do not name.
_EARLIER: Final = {"arithmetic": 1, "decoding": 1, "base_precision": "auto"}
_PASSING: Final = {Verdict.DENIED, Verdict.UNREACHABLE}  # the store may recover while this server runs


class Halted(Exception):
    """The server stops, or cannot serve this run with its present options. Operations keep waiting."""


class Postponed(Exception):
    """The store cannot be read at the moment. Nothing is decided; the recovery is retried."""


class NotRecovered(ServerFailure):
    """The run cannot be recovered: never (``is_final``), or not by this server."""

    def __init__(self, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(slots=True)
class RecoveryReceipt:
    """How a run was recovered."""

    reason: str
    archive: str | None = None
    skipped: list[dict[str, str]] = field(default_factory=list)  # archives that could not be read, and why
    replayed: int = 0
    redone: int = 0  # operations that had no result before
    matched: int = 0
    mismatched: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    lost: int = 0  # acknowledged operations that the journal lacks
    differing: list[dict[str, Any]] = field(default_factory=list)  # the first mismatched ones
    uncompared: list[dict[str, Any]] = field(default_factory=list)  # the first replayed ones that were not compared

    def compare(self, operation: Operation, again: OperationOutcome, *, digest: int) -> None:
        """Count a replayed operation whose first result had this digest. Results without numbers are not compared."""
        self.replayed += 1
        if not isinstance(operation.command, ForwardBackward | StepOptimizer):
            self._name(self.uncompared, operation, "its result holds no numbers")
        elif digest_of(again.result.body) == digest:
            self.matched += 1
        else:
            self.mismatched += 1
            self._name(self.differing, operation, "its result has other bytes than before")

    @staticmethod
    def _name(named: list[dict[str, Any]], operation: Operation, reason: str) -> None:
        if len(named) < _NAMED:
            named.append({"sequence": operation.sequence, "command": api_name(operation.command), "reason": reason})


class RunRecovery:
    def __init__(
        self,
        workers: Workers,
        placer: RunPlacer,
        catalog: Catalog,
        storage: ArchiveStorage,
        executor: Executor,
        archives: RecoveryArchives,
        limits: EngineLimits,
        shutdown: Shutdown,
        instruments: Instruments,
        *,
        settle: Settle,
        now: Callable[[], datetime],
    ) -> None:
        """``settle`` ends an operation that had no result before."""
        self._workers = workers
        self._placer = placer
        self._catalog = catalog
        self._storage = storage
        self._executor = executor
        self._archives = archives
        self._limits = limits
        self._shutdown = shutdown
        self._instruments = instruments
        self._settle = settle
        self._now = now
        # One recovery at a time in each worker: two at once would each take twice as long.
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def recover(self, run: Run, *, before: Operation | None) -> None:
        """Have the present worker hold the run as it was before the operation; do nothing if it already does.

        Raises WorkerLost, NotRecovered, Postponed, and Halted, also if no worker will ever be ready.
        """
        worker = await self._wait_for_worker(run)
        if run.generation == worker.generation:
            return
        base_model = ModelName.parse(run.base_model).base
        if base_model not in worker.environment.get("models", {base_model: ""}):
            raise self._hold(
                run,
                f"base model {base_model!r} is not served at the moment: start the server with "
                f"--model {base_model}=DIRECTORY, and run {run.run_id!r} continues from its last operation",
            )
        if before is not None and isinstance(before.command, OpenRun):
            return  # there is nothing to recover yet
        await run.all_saved()  # saves of the last worker end first, one way or another
        run.wait("the run waits for its turn to be recovered")
        async with self._turns[run.replica]:
            if not run.journal.is_kept:
                raise NotRecovered(
                    f"run {run.run_id!r} is not loaded any more: {run.recovery_reason}, and no journal is kept. "
                    "Resume it with create_training_client_from_state_with_optimizer and its last checkpoint."
                )
            try:
                with tracing.begin("recovery", run=run.run_id, reason=run.recovery_reason):
                    await self._rebuild(run, before)
            except BaseException as error:
                run.note_half_recovered()
                if isinstance(error, StoreError):
                    raise Postponed(f"the store of run {run.run_id!r} cannot be used now: {error}") from error
                raise
            finally:
                run.resume()

    @staticmethod
    def _hold(run: Run, reason: str) -> Halted:
        run.hold(reason)
        log.error("run waits run=%s reason=%s", run.run_id, reason)
        return Halted(reason)

    async def _wait_for_worker(self, run: Run) -> Worker:
        """The worker that the run is placed in. Raises Halted."""
        if not self._placer.is_ready_for(run):
            run.wait("the worker is being started, and the models are being loaded")
        try:
            return await self._placer.place(run)
        except WorkerLost as error:  # none will be started: the server ends, and the next one continues
            raise Halted from error
        finally:
            run.resume()

    async def _rebuild(self, run: Run, before: Operation | None) -> None:
        started = time.perf_counter()
        receipt = RecoveryReceipt(run.recovery_reason)
        run.begin_recovery("the run is being recovered")
        with tracing.span("recovery.load"):
            through = await self._load_newest(run, receipt)
        for each in receipt.skipped:
            log.warning("recovery archive skipped archive=%s error=%s", each["archive"], each["reason"])
        _refuse_gaps(run, through)
        receipt.lost = run.lost_operations
        if receipt.lost:
            receipt.notes.append(f"the journal had lost its end: {receipt.lost} acknowledged operations are missing")
        await self._fail_lost_results(run, through)
        pending = [
            operation
            for operation in run.journal.operations
            if operation.sequence > through and (before is None or operation.sequence < before.sequence)
        ]
        if before is None:
            pending = [operation for operation in pending if operation.is_begun]
        for number, operation in enumerate(pending):
            if self._shutdown.has_begun:
                raise Halted
            run.begin_recovery(f"the run is being recovered: {number} of {len(pending)} operations are replayed")
            with (
                working_for(operation.request.origin.request_id),
                tracing.span("recovery.replay", operation=api_name(operation.command), sequence=operation.sequence),
            ):
                await self._replay(run, operation, receipt)
        receipt.seconds = time.perf_counter() - started
        run.end_recovery()
        await self._report(run, receipt)

    async def _load_newest(self, run: Run, receipt: RecoveryReceipt) -> int:
        """The last operation that the loaded archive holds; 0: no archive can be read, and nothing is loaded."""
        worker = self._workers.replicas[run.replica]
        generation = worker.generation
        candidates = await self._archives.candidates(run.run_id)
        walk = WalkBack(candidates)
        then: Mapping[str, Any] = {}
        for candidate in walk:
            await worker.open_run(
                run.run_id,
                owner=run.owner,
                base_model=run.base_model,
                spec=RunSpec.from_json(run.spec),
                generation=generation,
            )
            try:
                seal, started = run.seals.get(candidate.name), time.perf_counter()
                await worker.load(run.run_id, candidate.name, with_optimizer=True, seal=seal, generation=generation)
                self._instruments.restored("recovery", seconds=time.perf_counter() - started)
                steps, then = await self._inspect(run, candidate)
                run.note_step(steps)
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
            run.note_loaded(generation)
            receipt.archive = chosen.name
            receipt.notes += differences(then, worker.environment, run.base_model)
            run.begin_replay(sorted(each.through for each in candidates if each.through <= chosen.through))
            return chosen.through
        return await self._without_archive(run, receipt, walk)

    async def _without_archive(self, run: Run, receipt: RecoveryReceipt, walk: WalkBack[RecoveryArchive]) -> int:
        """0 if the journal holds everything; raises if the run cannot be recovered without an archive."""
        if walk.blocked is not None and walk.blocked.verdict in _PASSING:
            raise Postponed(f"recovery archive {walk.blocked.candidate.name!r} cannot be read: {walk.blocked.reason}")
        first, now = run.journal.first_of_all(), self._workers.replicas[run.replica].environment
        then: Mapping[str, Any] = {}
        if first is not None and first.outcome is not None:
            then = first.outcome.facts.get("environment", {})
        elif walk.judged:
            with suppress(CheckpointError):  # as far as it can be read
                _, then = await self._inspect(run, walk.judged[0].candidate)
        if _is_another_model(then, now, run.base_model):
            base_model = ModelName.parse(run.base_model).base
            raise self._hold(
                run,
                f"base model {base_model!r} is not the one that run {run.run_id!r} was trained on: start the "
                f"server with --model {base_model}=DIRECTORY of that one, and the run continues",
            )
        reasons = "; ".join(each["reason"] for each in receipt.skipped) or "there is none"
        if walk.blocked is not None:  # it may be good, and loads another time
            raise NotRecovered(
                f"the newest recovery archive of run {run.run_id!r} cannot be loaded by this server: {reasons}. "
                "Nothing of it is lost; start the server again when that is mended.",
                is_final=False,
            )
        if first is None:
            raise NotRecovered(
                f"no recovery archive of run {run.run_id!r} can be read, and its journal does not go back to its "
                f"beginning: {reasons}. Resume it from its last checkpoint.",
                is_final=walk.ending is Ending.EXHAUSTED,  # else the store has none, as when a disk is not mounted
            )
        receipt.notes += differences(then, now, run.base_model)
        run.begin_replay([])
        return 0

    async def _inspect(self, run: Run, archive: RecoveryArchive) -> tuple[int, Mapping[str, Any]]:
        """After how many steps it was taken, and in which environment. Raises CheckpointError."""
        with await self._storage.open(archive.name, seal=run.seals.get(archive.name)) as opened:
            metadata = opened.manifest.metadata
            if (metadata.get("run_id"), metadata.get("through")) != (run.run_id, archive.through):
                raise DamagedArchive(
                    f"another archive is in its place: it holds run {metadata.get('run_id')!r} up to operation "
                    f"{metadata.get('through')!r}"
                )
            return opened.manifest.step or 0, metadata.get("environment", {})

    async def _fail_lost_results(self, run: Run, through: int) -> None:
        """The archive holds these operations, so they are not executed again: a damaged result stays lost."""
        for operation in run.journal.operations:
            if operation.sequence <= through and operation.outcome is None:
                name = operation.command.name
                lost = ServerFailure(f"the run has done {name}, but its result was lost in a damaged journal")
                await self._settle(run, operation, OperationOutcome.failed(lost))

    async def _replay(self, run: Run, operation: Operation, receipt: RecoveryReceipt) -> None:
        outcome, command = operation.outcome, operation.command
        if outcome is not None and outcome.is_failure:
            return  # it changed nothing
        if operation.request.damage is not None:
            raise NotRecovered(
                f"the journal of run {run.run_id!r} is damaged at operation {operation.sequence}: "
                f"{operation.request.damage}. What came after cannot be recovered; resume from its last checkpoint."
            )
        if outcome is None:
            await self._redo(run, operation, receipt)
            return
        if not operation.changes_state and not await self._lacks_archive(operation):
            return
        try:
            again = await self._executor.execute(run, operation)
        except WorkerLost:
            raise
        except (RequestError, JournalDamaged) as error:
            if isinstance(error, RequestError) and _VERDICTS.get(error.code) in _PASSING:
                raise Postponed(f"operation {operation.sequence} ({command.name}) waits: {error}") from error
            raise NotRecovered(
                f"operation {operation.sequence} ({command.name}) of run {run.run_id!r} cannot be replayed: {error}",
                is_final=isinstance(error, JournalDamaged),  # else it may succeed later, or with more memory
            ) from error
        receipt.compare(operation, again, digest=outcome.digest)

    async def _redo(self, run: Run, operation: Operation, receipt: RecoveryReceipt) -> None:
        """Execute an operation that was begun, and whose result is not known."""
        name = operation.command.name
        is_poison = operation.deaths >= self._limits.deaths or operation.attempts >= self._limits.attempts
        if is_poison and not operation.changes_state:
            times = max(operation.deaths, operation.attempts)
            poison = ServerFailure(f"{name} killed the worker {times} times, so it is not tried again")
            await self._settle(run, operation, OperationOutcome.failed(poison))
            return
        run.journal.attempt(operation)
        try:
            outcome = await self._executor.execute(run, operation)
            receipt.redone += 1
        except WorkerLost as error:
            operation.count_death(was_sent=error.code != "unsent")
            raise
        except RequestError as error:
            outcome = OperationOutcome.failed(error)
        except JournalDamaged as error:
            raise NotRecovered(
                f"operation {operation.sequence} ({name}) of run {run.run_id!r} cannot be replayed: {error}"
            ) from error
        await self._settle(run, operation, outcome)

    async def _lacks_archive(self, operation: Operation) -> bool:
        """Whether weights to sample from, which are written in the background, did not reach the store."""
        if not isinstance(operation.command, SnapshotWeights) or operation.outcome is None:
            return False
        archive = operation.outcome.facts.get("archive")
        return archive is not None and not await self._storage.look_up([archive])

    async def _report(self, run: Run, receipt: RecoveryReceipt) -> None:
        if receipt.mismatched:
            compared = receipt.matched + receipt.mismatched
            receipt.notes.append(f"{receipt.mismatched} of {compared} compared results differ from the first ones")
        log.info(
            "run recovered run=%s reason=%r archive=%s replayed=%d redone=%d matched=%d mismatched=%d seconds=%.2f%s",
            run.run_id,
            receipt.reason,
            receipt.archive,
            receipt.replayed,
            receipt.redone,
            receipt.matched,
            receipt.mismatched,
            receipt.seconds,
            "".join(f" note={note!r}" for note in receipt.notes),
        )
        self._instruments.recovered(
            _reason(receipt.reason),
            seconds=receipt.seconds,
            replayed=receipt.replayed + receipt.redone,
            mismatched=receipt.mismatched,
            lost=receipt.lost,
        )
        try:
            await self._catalog.recoveries.add(run_id=run.run_id, owner=run.owner, at=self._now(), **asdict(receipt))
            run.note_lost_operations(0)
        except CatalogError as error:
            log.warning("recovery receipt not written run=%s error=%s", run.run_id, error)


def _reason(recovery_reason: str) -> RecoveryReason:
    if recovery_reason in (PARKED, MOVED):
        return "run_parked"
    return "server_restarted" if recovery_reason == RESTARTED else "worker_died"


def _refuse_gaps(run: Run, through: int) -> None:
    """Raises NotRecovered if an operation names a predecessor that neither the journal nor the archive has."""
    before = through
    for operation in run.journal.operations:
        if operation.sequence <= through:
            continue
        if (after := operation.request.after) is not None and after > before:
            raise NotRecovered(
                f"the journal of run {run.run_id!r} lacks operations between {before} and {operation.sequence}: a "
                "file of it is missing or is an older copy. Put it back and start the server again, or resume the run "
                "from its last checkpoint.",
                is_final=False,
            )
        before = operation.sequence


def differences(then: Mapping[str, Any], now: Mapping[str, Any], base_model: str) -> list[str]:
    """What differs between two environments, in words."""
    before = {**_EARLIER, **then} if then else then
    found = [
        f"{name} was {before[name]!r} and is {now.get(name)!r}; "
        f"{'sampled tokens' if name == 'decoding' else 'numbers'} may differ"
        for name in before
        if name != "models" and before[name] != now.get(name, _EARLIER.get(name))
    ]
    if _is_another_model(then, now, base_model):
        found.append(f"base model {base_model!r} has other weights than it had; numbers differ")
    return found


def _is_another_model(then: Mapping[str, Any], now: Mapping[str, Any], base_model: str) -> bool:
    name = ModelName.parse(base_model).base
    before, after = (each.get("models", {}).get(name) for each in (then, now))
    return before is not None and before != after
