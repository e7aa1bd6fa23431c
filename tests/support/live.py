"""A live server: a real process, started as a user would start it, for tests that speak to it.

The server may run from another environment than the tests, so that older clients can be tried: its
interpreter is then named by ``CHOCKSTONE_SERVER_PYTHON``.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import httpx

from support.forking import executed, is_zygote
from support.postgres import database_for, shared_postgres
from support.stores import IS_S3, S3Place, open_place, place_in, shared_endpoint

if TYPE_CHECKING:
    from chockstone.checkpoints import Store

SERVER_PYTHON = os.environ.get("CHOCKSTONE_SERVER_PYTHON", sys.executable)
MODEL_NAMES = ("tiny-qwen3", "tiny-llama")
KEY = "tml-local"
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


def make_model(directory: Path, *, architecture: Literal["qwen3", "llama"] = "qwen3", size: str = "1M") -> Path:
    command = [SERVER_PYTHON, "-m", "chockstone.cli", "model", "make", str(directory)]
    command += ["--architecture", architecture, "--size", size]
    subprocess.run(command, check=True, capture_output=True, env=_clean())
    return directory


def make_models(parent: Path) -> dict[str, Path]:
    """A small model of each architecture; name → directory."""
    return {
        "tiny-qwen3": make_model(parent / "tiny-qwen3", architecture="qwen3"),
        "tiny-llama": make_model(parent / "tiny-llama", architecture="llama"),
    }


def shared_models(base: Path) -> dict[str, Path]:
    """The models of ``make_models``, made once for all processes of a test run. ``base``: pytest's, of this process."""
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = root / "shared-models"
    with open(root / "shared-models.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        if not made.exists():
            make_models(root / "shared-models.unfinished")
            (root / "shared-models.unfinished").rename(made)
    return {name: made / name for name in MODEL_NAMES}


class LiveServer:
    """Started on entering, stopped as by Ctrl-C on leaving; then its exit code is 0 and no process of it is left.

    ``flags`` are added to the command line, for instance ``"--key", "ann=tml-ann"``. Archives are in the data
    unless ``place`` names another, or the environment has all of them in a bucket; so is the catalog unless
    ``database`` is a URL, or the environment has all of them on PostgreSQL. ``is_executed``: as users start it, for
    what a fork cannot show.
    """

    def __init__(
        self,
        models: Mapping[str, Path],
        home: Path,
        *flags: str,
        key: str = KEY,
        threads: int = 1,
        place: S3Place | None = None,
        database: str | None = None,
        is_executed: bool = False,
    ) -> None:
        self.models = dict(models)
        self.place = place_in(shared_endpoint()) if place is None and IS_S3 else place
        self.home = home
        self.data = home / "data"
        self.database = database or database_for(self.data)
        self.key = key
        self.is_executed = is_executed
        self.url = ""
        self._port = 0  # any free one the first time, and then the same
        self._flags = [f"--threads={threads}", "--spare-worker=off", *flags]  # a spare takes seconds of a core
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[int] = []  # its children, when it was last told to stop
        self._log = home / "server.log"
        self.clients: list[subprocess.Popen[str]] = []  # that end with it, if a test has left them

    def __enter__(self) -> LiveServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.kill()
            client.wait()
        if not self.is_running():
            return
        try:
            self.stop()
        except BaseException:
            self.kill()
            if error is None:
                raise

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def command(self) -> list[str]:
        command = [SERVER_PYTHON, "-m", "chockstone.cli", "serve", f"--port={self._port}", f"--data={self.data}"]
        models = [f"--model={name}={directory}" for name, directory in self.models.items()]
        store = [] if self.place is None else [f"--store={self.place.url}"]
        return [*command, *models, *store, *self._flags]

    @property
    def store(self) -> Store:
        """Where its archives are."""
        from chockstone.checkpoints import open_store  # late: an older client's environment has none of ours

        return open_store(self.data / "checkpoints") if self.place is None else open_place(self.place)

    def environment(self) -> dict[str, str]:
        """In which it runs."""
        told = _clean() if self.place is None else self.place.environment(_clean())
        return told if self.database is None else {**told, "CHOCKSTONE_DATABASE": self.database}

    def sql(self, statement: str) -> None:
        """Done to its catalog behind its back: brings about in a moment what takes an hour."""
        if self.database is not None:
            shared_postgres().sql(statement, database=self.database)
            return
        with closing(sqlite3.connect(self.data / "catalog.sqlite3", timeout=10, isolation_level=None)) as connection:
            connection.execute(statement)

    def lose_catalog(self) -> None:
        """While it does not run."""
        if self.database is not None:
            shared_postgres().empty(self.database)
        for file in self.data.glob("catalog.sqlite3*"):
            file.unlink()

    def launch(self) -> subprocess.Popen[bytes]:
        """The process, not yet known to answer."""
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log, executed() if self.is_executed else nullcontext():
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.home, env=self.environment()
            )
        return self._process

    def start(self) -> None:
        """Returns when the server answers ``healthz``; torch may still be loading."""
        offset = self._log.stat().st_size if self._log.exists() else 0
        process = self.launch()
        deadline = time.monotonic() + _START_SECONDS
        while (found := re.search(r"TINKER_BASE_URL=(\S+:(\d+))\n", self.log()[offset:])) is None:
            assert process.poll() is None, f"the server ended with {process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"the server never said where it is:\n{self.log()}"
            time.sleep(0.01)
        self.url, self._port = found[1], int(found[2])
        answer = httpx.get(f"{self.url}/api/v1/healthz", timeout=10)
        assert answer.json() == {"status": "ok"}

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """As Ctrl-C would."""
        self.interrupt()
        code = self.wait()
        assert code == 0, f"the server ended with {code}:\n{self.log()}"

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self._family = descendants(self.pid)
        os.kill(self.pid, number)

    def wait(self, timeout_seconds: float = _STOP_SECONDS) -> int:
        """The exit code, once the server and its worker are gone."""
        assert self._process is not None, "the server was not started"
        code = self._process.wait(timeout_seconds)
        deadline = time.monotonic() + 5
        while left := [pid for pid in self._family if is_alive(pid)]:
            assert time.monotonic() < deadline, f"processes {left} of the server are left:\n{self.log()}"
            time.sleep(0.01)
        return code

    def workers(self) -> list[int]:
        """Process ids of its worker: one, unless it is just being restarted."""
        return [pid for pid in descendants(self.pid) if is_alive(pid) and not is_zygote(pid)]

    def kill(self) -> None:
        """At once, and the worker with it."""
        family = [self.pid, *self._family, *descendants(self.pid)]
        for pid in filter(is_alive, family):
            os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def log(self) -> str:
        """All that it printed and logged so far."""
        return self._log.read_text() if self._log.exists() else ""

    def env(self, key: str | None = None) -> dict[str, str]:
        """For a client in another process."""
        return {
            **self.environment(),
            "TINKER_BASE_URL": self.url,
            "TINKER_API_KEY": key or self.key,
            "TINKER_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def http(self, key: str | None = None) -> httpx.Client:
        """For what the SDK cannot say; paths are relative to ``/api/v1/``."""
        return httpx.Client(
            base_url=f"{self.url}/api/v1/", headers={"X-API-Key": key or self.key}, timeout=60, trust_env=False
        )


def _clean() -> dict[str, str]:
    """The environment without settings of ours, and of clients."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CHOCKSTONE_", "TINKER_"))}


def descendants(pid: int) -> list[int]:
    """Its children and theirs. They lead sessions of their own, so no group holds them."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            parents[int(entry.name)] = int(stat[1])
    found = [pid]
    for ancestor in found:
        found += [child for child, parent in parents.items() if parent == ancestor]
    return found[1:]


def is_alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    """State, parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
