"""A server that is started again whenever it dies, scripts that train through it, and what they heard.

The server is the real one, started as by systemd with ``Restart=always``: on the same port, with the
same command, as soon as it has ended. The scripts are those of crash_scripts.py, in a process of their own.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from chockstone.checkpoints import Archive, Store
from chockstone.checkpoints.restoring.diff import compare
from support.live import LiveServer
from support.stores import S3Place

SCRIPT = Path(__file__).with_name("crash_scripts.py")
CLIENT_SECONDS = 150.0  # without a word, and then it hangs
OFTEN = ("--recovery-steps=3",)  # a recovery archive every few steps, so that kills meet them too


class RestartedServer(LiveServer):
    """Started again whenever it ends, until it is left. ``deaths`` holds each exit code.

    It is executed, as systemd does: kills during a start need a start that takes its time, and bits must not depend on
    what a fork would keep, such as the seed of hashes. ``is_executed`` False saves seconds of each start, where a test
    claims neither.
    """

    def __init__(
        self,
        models: Mapping[str, Path],
        home: Path,
        *flags: str,
        env: Mapping[str, str] = {},
        place: S3Place | None = None,
        is_executed: bool = True,
    ) -> None:
        super().__init__(models, home, *flags, place=place, is_executed=is_executed)
        self.deaths: list[int] = []
        self._more = dict(env)
        self._is_over = threading.Event()
        self._held = threading.Event()  # cleared: it stays down
        self._held.set()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> RestartedServer:
        self.start()
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._held.set()
        super().__exit__(kind, error, traceback)
        self._keeper.join()
        if self.is_running():  # it came up again while it was left
            self.kill()

    def environment(self) -> dict[str, str]:
        return super().environment() | self._more

    def hold(self) -> None:
        """Once it dies, keep it down until ``release``."""
        self._held.clear()

    def release(self) -> None:
        self._held.set()

    def use_flags(self, *flags: str) -> None:
        """From its next start on."""
        self._flags = [*flags]

    def kill_server(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def kill_worker(self) -> None:
        for pid in self.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_both(self) -> None:
        pids = [*self.workers(), self.pid]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait_for_next(self, deaths: int) -> None:
        """Until a process is there after so many deaths."""
        until(lambda: len(self.deaths) >= deaths and self.is_running(), "the server is started again")

    def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = self._process.wait()
            if self._is_over.is_set():
                return
            self.deaths.append(code)
            self._held.wait()
            if self._is_over.is_set():
                return
            self.launch()


def until(is_so: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"in {seconds:.0f} s it was not so: {what}"
        time.sleep(0.005)


class Client:
    """A process in which scripts run; its lines say how far they are."""

    def __init__(self, server: LiveServer, home: Path, *scripts: str, url: str | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._notes = home / f"notes-{len(list(home.glob('notes-*')))}.json"
        self._server = server
        self._errors = self._notes.with_suffix(".err")
        env = server.env() | ({"TINKER_BASE_URL": url} if url else {})
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(self._notes), *scripts],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=env,
            )
        server.clients.append(self._process)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def lines(self) -> Iterator[str]:
        """As they come; ends when the scripts have."""
        try:
            while (line := self._lines.get(timeout=CLIENT_SECONDS)) is not None:
                yield line
            self._lines.put(None)  # for whoever asks again
        except queue.Empty:
            raise AssertionError(f"the scripts hang.\n{self.errors()}\n{self._server.log()[-20_000:]}") from None

    def wait_for(self, count: int) -> None:
        """Until so many more lines have come."""
        lines = self.lines()
        for _ in range(count):
            next(lines)

    def result(self, *, with_usage: bool = False) -> Heard:
        """What the scripts heard, once they have ended."""
        for _ in self.lines():
            pass
        code = self._process.wait(60)
        assert code == 0, f"a script failed:\n{self.errors()}\n{self._server.log()[-20_000:]}"
        told = json.loads(self._notes.read_text())
        saved = {f"{name} {label}": path for name, each in told.items() for label, path in each["saved"].items()}
        return Heard(
            {name: each["heard"] for name, each in told.items()},
            saved,
            self._server.store,
            max(each["longest_wait"] for each in told.values()),
            used(self._server, {run_of(path) for path in saved.values()}) if with_usage else {},
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def errors(self) -> str:
        return self._errors.read_text()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._process.stdout.close()
        self._lines.put(None)


@dataclass(frozen=True)
class Heard:
    notes: dict[str, list[Any]]  # of each script
    saved: dict[str, str]  # what it is → path
    store: Store
    longest_wait: float
    used: dict[str, int]  # tokens and checkpoints, as they are billed; empty if nobody asked

    @property
    def count(self) -> int:
        return sum(map(len, self.notes.values()))

    def archive(self, label: str) -> Archive:
        run_id, kind, name = self.saved[label].removeprefix("tinker://").split("/")
        folder = f"{run_id.replace(':', '.')}/{kind}"
        [entry] = [each for each in self.store.entries(folder) if each.name.startswith(f"{folder}/{name}.")]
        return Archive(self.store.open(entry.name))


def run_of(path: str) -> str:
    return path.removeprefix("tinker://").partition("/")[0]


def used(server: LiveServer, run_ids: Iterable[str], key: str | None = None) -> dict[str, int]:
    """What the sessions of these runs have used so far, by type of use."""
    sessions = {run_id.partition(":")[0] for run_id in run_ids}
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    hours = {"starting_on": now - timedelta(hours=6), "ending_before": now + timedelta(hours=1)}
    with server.http(key) as http:
        answer = http.get("billing/usage/events", params={name: hour.isoformat() for name, hour in hours.items()})
    assert answer.status_code == 200, answer.text
    found: Counter[str] = Counter()
    for event in answer.json()["data"]:
        if event.get("session_id") in sessions:
            info = event["event_info"]
            found[info["type"]] += info.get("token_count", 0) + info.get("count", 0)
    return dict(found)


def assert_same(heard: Heard, undisturbed: Heard) -> None:
    """Every number that was heard and every tensor that was saved, bit for bit."""
    for name, notes in undisturbed.notes.items():
        for number, (expected, given) in enumerate(zip(notes, heard.notes[name], strict=True)):
            assert given == expected, f"note {number} of {name} differs"
    assert heard.saved.keys() == undisturbed.saved.keys()
    for label in undisturbed.saved:
        with undisturbed.archive(label) as before, heard.archive(label) as after:
            difference = compare(before, after)
            assert difference.is_empty, f"{label}: {difference.changes[:5]}"
            assert difference.same["tensors"] > 10


@dataclass
class Killer:
    """Kills by a seeded plan, spread evenly over the notes of a run that is ``total`` notes long."""

    server: RestartedServer
    randomness: random.Random
    kills: int = 0
    done: list[str] = field(default_factory=list)

    def disturb(self, client: Client, *, plan: list[str], total: int) -> None:
        """Do what is planned while the scripts run."""
        due = [(number + self.randomness.random()) * total / (len(plan) + 1) for number in range(len(plan))]
        for count, _ in enumerate(client.lines()):
            while due and count >= due[0]:
                due.pop(0)
                time.sleep(self.randomness.uniform(0.0, 0.05))
                word = plan[len(self.done)]
                self.done.append(word)
                getattr(self, f"_{word.replace(' ', '_')}")()
        assert len(self.done) == len(plan), f"the scripts ended after {self.done}:\n{client.errors()}"

    def _worker(self) -> None:
        until(lambda: bool(self.server.workers()), "there is a worker")
        self.server.kill_worker()
        self.kills += 1

    def _server(self) -> None:
        self._end(self.server.kill_server)

    def _both(self) -> None:
        self._end(self.server.kill_both)

    def _worker_twice(self) -> None:
        """The second time while it starts, or while the runs come back."""
        self._worker()
        until(lambda: not self.server.workers(), "the worker is gone")
        self._pause(5.0)
        self._worker()

    def _server_twice(self) -> None:
        """The second time while it starts."""
        self._server()
        self._pause(1.5)
        self._server()

    def _server_in_recovery(self) -> None:
        """The second time about when runs come back, the third soon after."""
        self._both()
        self._pause(6.0)
        self._server()
        self._pause(0.5)
        self._server()

    def _worker_in_recovery(self) -> None:
        self._both()
        self._pause(6.0)
        self._worker()

    def _stopped(self) -> None:
        """A worker and then a server that do nothing for a moment, and go on."""
        until(lambda: bool(self.server.workers()), "there is a worker")
        for pid in (self.server.workers()[0], self.server.pid):
            os.kill(pid, signal.SIGSTOP)
            self._pause(1.0)
            os.kill(pid, signal.SIGCONT)

    def _stopped_and_killed(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)
        self._pause(0.5)
        self._both()

    def _end(self, kill: Callable[[], None]) -> None:
        deaths = len(self.server.deaths)
        kill()
        self.kills += 1
        self.server.wait_for_next(deaths + 1)

    def _pause(self, most: float) -> None:
        time.sleep(self.randomness.uniform(0.0, most))
