"""Problems: what needs a person, each with what happened, since when, and what to do.

Problems of the worker, the journal and live runs are found at each look. Those in the catalog are looked for at most
every five seconds. ``since`` is when the problem began, where that is known, and else when this server first saw it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from chockstone.api.status.disk_space import DiskSpace
from chockstone.api.status.readiness import NotReady, Readiness
from chockstone.backends.protocol import SamplerGap
from chockstone.catalog import CatalogError
from chockstone.engine.engine import Engine
from chockstone.engine.runs.run import Held, Waiting
from chockstone.wire.messages.operations.server import ProblemKind

log = logging.getLogger(__name__)
_FRESH_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 30.0  # between two looks that no one asked for, so that ``since`` is right
_NAMED: Final = 20  # of each kind and owner; admins see so many of each kind
_READ: Final = 2000  # of each kind
_RECENT: Final = timedelta(days=7)
_RECENT_DEATH: Final = timedelta(hours=1)
_OVERDUE: Final = timedelta(hours=1)
_OVERDUE_NAMED: Final = 5  # each is compared with the journals of all runs
_SOON_DAYS: Final = 3.0
_SEEN: Final = 10_000  # problems whose first sighting is remembered


@dataclass(frozen=True, slots=True)
class ServerProblem:
    kind: ProblemKind
    what: str
    to_do: str
    since: datetime | None = None  # None: not known
    owner: str | None = None  # None: the problem is the server's
    run_id: str | None = None
    path: str | None = None
    subject: str | None = None  # tells problems of one kind apart that have neither run nor path

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        return self.kind, self.run_id, self.path or self.subject


_CHECKS: Final[dict[str, tuple[ProblemKind, str]]] = {
    "models": ("model_not_loaded", "Look in the server's log for why the worker could not load it."),
    "journal": (
        "journal_not_written",
        "Free space on the disk, or repair it: requests wait until the journal can be written.",
    ),
    "catalog": ("catalog_unreachable", "Check the database server and the network; the server retries."),
    "store": ("store_unreachable", "Check the disk or the object store, and the server's permissions there."),
    "disk": (
        "disk_below_reserve",
        "Free space: delete checkpoints, empty the trash (`chockstone trash empty`), or enlarge the disk.",
    ),
}


class Problems:
    def __init__(
        self,
        engine: Engine,
        readiness: Readiness,
        disk: DiskSpace,
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._readiness = readiness
        self._disk = disk
        self._now = now
        self._monotonic = monotonic
        self._first_seen: dict[tuple[str, str | None, str | None], datetime] = {}
        self._stored: tuple[ServerProblem, ...] = ()
        self._looked_at: float | None = None
        self._turn = asyncio.Lock()

    async def current(self, owner: str | None) -> tuple[ServerProblem, ...]:
        """The server's and this user's; all users' when ``owner`` is None. Each has its ``since``."""
        found = [*self._of_server(await self._readiness.reasons()), *await self._of_disk(), *self._of_runs()]
        found += self._of_gaps()
        stored = await self._in_catalog()
        dated = list(self._dated([*found, *stored]))
        if owner is None:
            return (*dated[: len(found)], *_first_of_each_kind(dated[len(found) :]))
        return tuple(each for each in dated if each.owner in (None, owner))

    async def keep(self) -> None:
        """Look now and then, for ever, so that it is known since when there is a problem."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.current(None)
            except Exception as error:  # noqa: BLE001  # the next look may go better
                log.warning("problems not looked for error=%s", error)

    def _dated(self, found: list[ServerProblem]) -> Iterator[ServerProblem]:
        seen = {each.key: self._first_seen.get(each.key, self._now()) for each in found[:_SEEN]}
        self._first_seen = seen
        for each in found:
            yield each if each.since is not None else replace(each, since=seen.get(each.key, self._now()))

    def _of_server(self, reasons: tuple[NotReady, ...]) -> Iterator[ServerProblem]:
        status = self._engine.worker_status
        for reason in reasons:
            if reason.check == "worker" and (status.deaths or not reason.is_starting):
                since = datetime.fromtimestamp(status.since, UTC)
                to_do = "Look in the server's log for the worker's last lines. Operations wait until a worker is ready."
                yield ServerProblem("worker_not_ready", _sentence(reason.detail), to_do, since)
            elif reason.check in _CHECKS:
                kind, to_do = _CHECKS[reason.check]
                yield ServerProblem(kind, _sentence(reason.detail), to_do)
        if status.last_death_at is not None and self._engine.is_ready:
            died_at = datetime.fromtimestamp(status.last_death_at, UTC)
            if self._now() - died_at < _RECENT_DEATH:
                times = "once" if status.deaths == 1 else f"{status.deaths} times"
                yield ServerProblem(
                    "worker_died",
                    f"The worker died {times} since the server started; the last time, {status.last_death}.",
                    "Its runs are recovered. If the OOM killer ended it, add memory or lower --max-runs.",
                    died_at,
                )

    async def _of_disk(self) -> list[ServerProblem]:
        try:
            space = await self._disk.look()
        except OSError:
            return []  # the readiness says so
        days = self._disk.forecast(space).full_in_days
        if days is None or days > _SOON_DAYS or space.free_bytes < self._disk.reserve_bytes:
            return []
        what = f"At the pace of the last day, the disk reaches its reserve in {days:.1f} days."
        return [ServerProblem("disk_fills_soon", what, _CHECKS["disk"][1])]

    def _of_runs(self) -> Iterator[ServerProblem]:
        for run in self._engine.runs:
            match run.state:
                case Held(reason):
                    to_do = "Restart the server with the options that the run needs; its operations wait until then."
                    yield ServerProblem(
                        "run_held",
                        _sentence(f"run {run.run_id!r} is held: {reason}"),
                        to_do,
                        owner=run.owner,
                        run_id=run.run_id,
                    )
                case Waiting(reason) if self._engine.holds(run):
                    yield ServerProblem(
                        "run_waiting",
                        _sentence(f"run {run.run_id!r} waits: {reason}"),
                        "Mend the cause; the run then continues by itself.",
                        owner=run.owner,
                        run_id=run.run_id,
                    )

    def _of_gaps(self) -> Iterator[ServerProblem]:
        """One for each vLLM server and base model: a training makes many samplers."""
        limit = self._engine.gaps.limit
        grouped: defaultdict[tuple[str, str], list[SamplerGap]] = defaultdict(list)
        for gap in self._engine.gaps.exceeding:
            grouped[gap.server, gap.base_model].append(gap)
        for (server, model), gaps in grouped.items():
            means = [gap.mean for gap in gaps if gap.mean is not None]
            troubles = [gap.trouble for gap in gaps if gap.trouble is not None]
            found = [
                *([f"log-probabilities differ by {max(means):.2g} nats, the limit is {limit:g}"] if means else []),
                *([f"the difference could not be measured: {troubles[-1]}"] if troubles else []),
            ]
            weights = "one set of weights" if len(gaps) == 1 else f"{len(gaps)} sets of weights"
            yield ServerProblem(
                "sampler_gap",
                _sentence(
                    f"the vLLM server {server!r} does not sample from {weights} of {model!r}: {'; '.join(found)}"
                ),
                "The worker or another vLLM server samples instead. Give vLLM the model files and the --dtype of this "
                "server, restart vLLM, and measure again with `chockstone samplers check`.",
                subject=f"{server} {model}",
            )

    async def _in_catalog(self) -> tuple[ServerProblem, ...]:
        async with self._turn:
            is_old = self._looked_at is None or self._monotonic() - self._looked_at >= _FRESH_SECONDS
            if is_old:
                with suppress(CatalogError):  # the readiness says so; what was found before may still be true
                    self._stored = tuple([each async for each in self._read_catalog()])
                self._looked_at = self._monotonic()
            return self._stored

    async def _read_catalog(self) -> AsyncIterator[ServerProblem]:
        catalog, now = self._engine.catalog, self._now()
        for run in await catalog.run_search.list_lost(since=now - _RECENT, per_owner=_NAMED, limit=_READ):
            yield ServerProblem(
                "run_lost",
                _sentence(f"run {run.run_id!r} is lost: {run.failure or 'the server could not recover it'}"),
                "Resume from its last checkpoint, then delete the run with `chockstone runs rm`.",
                run.last_request_at,
                run.owner,
                run.run_id,
            )
        for recovery in await catalog.recoveries.list_differing(since=now - _RECENT, per_owner=_NAMED, limit=_READ):
            lost = f" and {recovery.lost} acknowledged operations were lost" if recovery.lost else ""
            yield ServerProblem(
                "recovery_differs",
                f"A recovery of run {recovery.run_id!r} gave other numbers in {recovery.mismatched} of "
                f"{recovery.replayed} replayed operations{lost}.",
                "Read its receipt (`chockstone runs recoveries`). Another machine or version may compute otherwise.",
                recovery.at,
                recovery.owner,
                recovery.run_id,
            )
        for row in await catalog.checkpoints.list_damaged(now=now, per_owner=_NAMED, limit=_READ):
            yield ServerProblem(
                "checkpoints_damaged",
                _sentence(f"checkpoint {row.path!r} is damaged: {row.damage}"),
                "Load another one. Put a good copy of its archive back, or delete the checkpoint.",
                None,
                row.owner,
                row.run_id,
                row.path,
            )
        due = await catalog.trash.due(now=now - _OVERDUE, limit=_OVERDUE_NAMED)
        for each in await self._engine.checkpoints.purgeable(due):
            yield ServerProblem(
                "trash_overdue",
                f"Checkpoint {each.path!r} should have been deleted from the trash, and its bytes are still there.",
                "Look in the server's log for why; `chockstone doctor` shows what is left.",
                each.purge_at,
                each.owner,
                each.checkpoint.run_id,
                each.path,
            )


def _first_of_each_kind(found: Iterable[ServerProblem]) -> Iterator[ServerProblem]:
    counts: Counter[str] = Counter()
    for each in found:
        counts[each.kind] += 1
        if counts[each.kind] <= _NAMED:
            yield each


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
