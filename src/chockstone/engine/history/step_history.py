"""Step history: records the points of all runs, writes them to their files, and reads and publishes them.

A point is in memory at once and in its file within a second. The journal has the numbers of each operation until the
file is durable, so a crash costs no point of the server. A file that cannot be read or written costs points, never a
run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from chockstone.engine.config import Busy
from chockstone.engine.history.file_cache import FileCache
from chockstone.engine.history.history_file import HistoryFiles, HistoryTooNew
from chockstone.engine.history.points import HistoryPoint, Measurement
from chockstone.engine.history.run_history import MAX_NAMES, RunHistory, TooManyNames
from chockstone.engine.history.subscriptions import MAX_WAITING, Subscription, Subscriptions
from chockstone.engine.history.thinning import downsample
from chockstone.wire.failures import BadRequest

log = logging.getLogger(__name__)
T = TypeVar("T")
DEFAULT_LIMIT: Final = 1000
_WRITE_SECONDS: Final = 0.5  # after a point was recorded
_RETRY_SECONDS: Final = 5.0  # after a write failed
_MAX_WAITING_POSTS: Final = 8  # of one run
_MAX_OWNERS_WAITING_POSTS: Final = 16  # of all runs of one owner, so that others have places
_MAX_ALL_WAITING_POSTS: Final = 64  # of all runs: what a recovery archive waits for stays short


@dataclass(frozen=True, slots=True)
class HistoryPage:
    run_id: str
    points: Sequence[HistoryPoint]
    cursor: int  # position to continue after
    has_more: bool


class StepHistory:
    def __init__(self, directory: Path) -> None:
        """Files are kept in ``directory``, which the first point makes."""
        self._files = HistoryFiles(directory)
        self._cache = FileCache()
        self._open: WeakValueDictionary[str, RunHistory] = WeakValueDictionary()  # as long as somebody holds them
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unwritten: dict[str, RunHistory] = {}
        self._news = asyncio.Event()
        self._posts: Counter[str] = Counter()  # that are being written, by run
        self._owners_posts: Counter[str] = Counter()  # likewise, by owner
        self._subscriptions = Subscriptions()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")  # one: writes never crowd out other work

    async def create(self, run_id: str, *, birth: str) -> RunHistory:
        """The history of a new run. That of an earlier run with the same id is deleted."""
        async with self._lock(run_id):
            await self._delete(run_id)
            history = RunHistory(run_id, self._files.of(run_id), birth=birth)
            self._open[run_id] = history
            return history

    async def complete(
        self, run_id: str, recorded: Iterable[tuple[int, Measurement]], *, birth: str, next_sequence: int
    ) -> RunHistory:
        """The history of a run of an earlier server, with the points that only its journal has.

        ``recorded`` are the operations in the journal that have numbers, each with its sequence, oldest first;
        ``next_sequence`` is that of the next operation.
        """
        history = await self._opened(run_id, birth=birth)
        history.rewind(next_sequence)
        for sequence, measured in recorded:
            self.record(history, sequence, measured)
        return history

    def record(self, history: RunHistory, sequence: int, measured: Measurement) -> None:
        """Record the numbers of an operation, unless they are recorded already. Returns at once."""
        if (point := history.add_server(sequence, measured)) is not None:
            self._note(history, [point])

    async def record_client(self, run_id: str, measured: Sequence[Measurement], *, owner: str) -> int:
        """Record points of a client; returns the cursor. On return they survive a killed server.

        Raises BadRequest when the run has too many series, and Busy when the disk does not keep up.
        """
        with self._posting(run_id, owner):
            history = await self._opened(run_id)
            try:
                points = history.add_client(measured)
            except TooManyNames:
                raise BadRequest(
                    f"run {run_id!r} would have more than {MAX_NAMES} series; use the names that it has"
                ) from None
            self._note(history, points)
            cursor = history.cursor
            await self._write(history, synced=False)
            return cursor

    @contextmanager
    def _posting(self, run_id: str, owner: str) -> Iterator[None]:
        """Inside, one more request with metrics waits. Raises Busy."""
        if self._posts[run_id] >= _MAX_WAITING_POSTS:
            raise Busy(f"run {run_id!r} has {_MAX_WAITING_POSTS} requests with metrics waiting; wait for some to end")
        if self._owners_posts[owner] >= _MAX_OWNERS_WAITING_POSTS:
            raise Busy(f"{_MAX_OWNERS_WAITING_POSTS} requests of yours with metrics are waiting; wait for some to end")
        if self._posts.total() >= _MAX_ALL_WAITING_POSTS:
            raise Busy(f"{_MAX_ALL_WAITING_POSTS} requests with metrics are waiting; send yours again in a moment")
        counted = ((self._posts, run_id), (self._owners_posts, owner))
        for posts, key in counted:
            posts[key] += 1
        try:
            yield
        finally:
            for posts, key in counted:
                posts[key] -= 1
                if not posts[key]:
                    del posts[key]

    async def read(
        self,
        run_id: str,
        *,
        after: int = 0,
        limit: int = DEFAULT_LIMIT,
        names: Iterable[str] | None = None,
        max_points: int | None = None,
    ) -> HistoryPage:
        """Points after a position, oldest first, and the cursor for the next page.

        ``names``: only these series. ``max_points``: all points, merged to at most so many for a chart; ``limit`` does
        not apply then. A run without points has an empty history.
        """
        wanted = None if names is None else frozenset(names)
        history = self._open.get(run_id)
        recent = None if history is None else history.recent(after)
        if recent is not None:
            return _page(run_id, recent, after, limit, wanted, max_points)
        newest = [] if history is None else history.in_memory()

        def read() -> HistoryPage:
            points = self._read(run_id, newest)
            return _page(run_id, points, after, limit, wanted, max_points)

        return await asyncio.to_thread(read)

    def subscribe(self, run_id: str | None, *, max_waiting: int = MAX_WAITING) -> Subscription:
        """New points of a run, or of all runs, from now on."""
        return self._subscriptions.open(run_id, max_waiting=max_waiting)

    async def sync(self, history: RunHistory) -> None:
        """Make durable what is recorded, before the journal drops it. A failure is logged: it never stops a run."""
        await self._write(history, synced=True)

    async def remove(self, run_id: str) -> None:
        """Delete the history of a run that is removed."""
        async with self._lock(run_id):
            await self._delete(run_id)
        self._subscriptions.end(run_id)

    async def list_runs(self, *, written_before: float) -> list[str]:
        """The runs that have a file which was not written since then, in seconds since 1970."""
        try:
            return await self._in_thread(lambda: self._files.list_runs(written_before=written_before))
        except OSError as error:
            log.warning("histories not listed error=%s", error)
            return []

    async def keep(self) -> None:
        """Write what is recorded, for ever."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_WRITE_SECONDS)
            self._news.clear()
            if not await self._write_all(synced=False):
                await asyncio.sleep(_RETRY_SECONDS)

    async def stop(self) -> None:
        """Make everything durable, and end all subscriptions."""
        await self._write_all(synced=True)
        self._subscriptions.end_all()
        self._thread.shutdown(wait=False)

    async def _opened(self, run_id: str, *, birth: str | None = None) -> RunHistory:
        """``birth``: of the run; None: the file has it."""
        async with self._lock(run_id):
            if (history := self._open.get(run_id)) is not None:
                return history
            history = await self._in_thread(lambda: self._load(run_id, birth))
            self._open[run_id] = history
            return history

    def _load(self, run_id: str, birth: str | None) -> RunHistory:
        file = self._files.of(run_id)
        try:
            contents = file.read()
        except (HistoryTooNew, OSError) as error:
            log.warning("history not read; new points are kept in memory only run=%s error=%s", run_id, error)
            unreadable = RunHistory(run_id, file, birth=birth or "")
            unreadable.take_readonly()
            return unreadable
        if contents.damaged_lines:
            log.warning("history damaged path=%s lines=%d; they are lost", file.path, contents.damaged_lines)
        history = RunHistory(run_id, file, birth=contents.birth or "" if birth is None else birth)
        is_of_another = birth is not None and contents.birth not in (None, "", birth)
        if not is_of_another:
            is_whole = not contents.damaged_lines and contents.birth == history.birth
            history.take(contents.points, size_bytes=contents.size_bytes, is_whole=is_whole)
        return history

    def _read(self, run_id: str, newest: Sequence[HistoryPoint]) -> list[HistoryPoint]:
        """The points in the file, and those in memory that the file lacks."""
        try:
            written = self._cache.read(self._files.of(run_id))
        except (HistoryTooNew, OSError) as error:
            log.warning("history not read run=%s error=%s", run_id, error)
            written = ()
        last = written[-1].position if written else 0
        return [*written, *(point for point in newest if point.position > last)]

    def _note(self, history: RunHistory, points: Sequence[HistoryPoint]) -> None:
        self._unwritten[history.run_id] = history
        self._news.set()
        self._subscriptions.publish(history.run_id, points)

    async def _write_all(self, *, synced: bool) -> bool:
        """Whether all of it is written."""
        return all([await self._write(history, synced=synced) for history in list(self._unwritten.values())])

    async def _write(self, history: RunHistory, *, synced: bool) -> bool:
        """Whether it is written. A failure is logged once, and tried again later."""
        async with history.writing:
            points, history.unwritten = history.unwritten, []
            self._unwritten.pop(history.run_id, None)
            try:
                await self._in_thread(lambda: history.write(points, synced=synced))
            except OSError as error:
                self._put_back(history, points)
                if not history.is_failing:
                    log.warning("history not written run=%s error=%s; it is tried again", history.run_id, error)
                history.is_failing = True
                return False
            except BaseException:  # cancelled: a point that is written twice is read once
                self._put_back(history, points)
                raise
            history.is_failing = False
            return True

    def _put_back(self, history: RunHistory, points: Sequence[HistoryPoint]) -> None:
        history.put_back(points)
        self._unwritten[history.run_id] = history
        self._news.set()

    async def _delete(self, run_id: str) -> None:
        """To be called with the run's lock held."""
        self._unwritten.pop(run_id, None)
        if (history := self._open.pop(run_id, None)) is not None:
            history.take_readonly()  # a write that waits leaves the disk alone
        try:
            await self._in_thread(self._files.of(run_id).delete)
        except OSError as error:
            log.warning("history not deleted run=%s error=%s", run_id, error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _lock(self, run_id: str) -> asyncio.Lock:
        return self._opening.setdefault(run_id, asyncio.Lock())


def _page(
    run_id: str,
    points: Sequence[HistoryPoint],
    after: int,
    limit: int,
    names: frozenset[str] | None,
    max_points: int | None,
) -> HistoryPage:
    points = [point for point in points if point.position > after]
    newest = points[-1].position if points else after
    if max_points is None:
        points = points[:limit]
    cursor = points[-1].position if points else after
    if names is not None:
        points = [kept for point in points if (kept := point.only(names)) is not None]
    if max_points is not None:
        points = downsample(points, max_points)
    return HistoryPage(run_id, points, cursor, has_more=cursor < newest)
