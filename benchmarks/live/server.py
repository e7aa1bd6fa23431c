"""A live server: the real process, started as a user starts it, and its worker as the kernel sees it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]  # has no stubs of its own

from benchmarks.live.models import Model

KEY = "tml-local"
PROGRAM = ("-m", "chockstone.cli")
START_SECONDS = 60.0
STOP_SECONDS = 30.0


class ServerFailed(Exception):
    """The server did not start, or did not answer."""


class LiveServer:
    """A server that runs while the ``with`` block does. It answers on entering; its models may still be loading.

    ``flags`` are added to the command line; ``program`` is what Python runs; ``environment`` is added to ours. A server
    that was killed may be started again, on its data and port.
    """

    def __init__(
        self,
        models: Iterable[Model],
        home: Path,
        *,
        threads: int,
        flags: Sequence[str] = (),
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._models = list(models)
        self._home = home
        self._program = program
        self._environment = _environment() | dict(environment or {})
        self._flags = [f"--threads={threads}", *flags]
        self._log = home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def data(self) -> Path:
        return self._home / "data"

    @property
    def log(self) -> Path:
        return self._log

    @property
    def checkpoints(self) -> Path:
        return self.data / "checkpoints"

    @property
    def process(self) -> psutil.Process:
        """The process that serves the API."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def __enter__(self) -> LiveServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the server answers; torch may still be loading."""
        self._home.mkdir(parents=True, exist_ok=True)
        port = urlsplit(self.url).port or 0
        command = [sys.executable, *self._program, "serve", f"--port={port}", "--log-level=warning"]
        command += [f"--data={self.data}", *self._flags]
        command += [f"--model={model.name}={model.directory}" for model in self._models]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._home, env=self._environment)
        try:
            self.url = self._wait_for_address(self._process)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def stop(self) -> None:
        """As Ctrl-C does. A server that does not end is killed, and its worker ends with it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """With SIGKILL. Returns when the worker, which ends with its server, is gone, too."""
        assert self._process is not None
        family = self.process.children()
        self._process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=STOP_SECONDS)

    def archive_of(self, path: str) -> Path:
        """The file of a checkpoint, by its ``tinker://`` path."""
        run_id, kind, name = path.removeprefix("tinker://").split("/")
        [archive] = (self.checkpoints / run_id.replace(":", ".") / kind).glob(f"{name}.*tar")
        return archive

    def worker(self) -> psutil.Process:
        """The process that computes."""
        workers = self._workers()
        if not workers:
            raise ServerFailed(f"the server has no worker; see {str(self._log)!r}")
        return workers[0]

    def spare(self) -> psutil.Process | None:
        """The process that waits to replace the worker; None: it is not there yet."""
        return next(iter(self._workers()[1:]), None)

    def wait_for_spare(self) -> psutil.Process:
        """Wait until the spare has imported everything: it uses no more CPU time then."""
        deadline, used = time.monotonic() + START_SECONDS, -1.0
        while True:
            spare = self.spare()
            now = 0.0 if spare is None else sum(spare.cpu_times()[:2])
            if spare is not None and now == used and now > 0:
                return spare
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server has no spare worker; see {str(self._log)!r}")
            used = now
            time.sleep(0.5)

    def _workers(self) -> list[psutil.Process]:
        """The worker, then its spare: a spare is started when its worker is ready."""
        children = [each for each in self.process.children() if "chockstone.backends.worker.main" in each.cmdline()]
        return sorted(children, key=lambda child: child.create_time())

    def worker_memory_bytes(self) -> int:
        """The worker's proportional share (PSS) of the memory it has mapped."""
        return memory_bytes(self.worker())

    def _wait_for_address(self, process: subprocess.Popen[bytes]) -> str:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"TINKER_BASE_URL=(\S+)\n", self._log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"the server did not start; it said:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.01)
        connection = connect(found[1])
        connection.request("GET", "/api/v1/healthz")
        if (status := connection.getresponse().status) != 200:
            raise ServerFailed(f"the server answers healthz with {status}")
        connection.close()
        return found[1]


def memory_bytes(process: psutil.Process) -> int:
    """The process's proportional share (PSS) of the memory it has mapped."""
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/…/smaps_rollup has no Pss line")


def connect(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    assert address.hostname is not None
    return http.client.HTTPConnection(address.hostname, address.port, timeout=30)


def _environment() -> dict[str, str]:
    """Without settings of servers and clients: the server runs with its defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CHOCKSTONE_", "TINKER_"))}
