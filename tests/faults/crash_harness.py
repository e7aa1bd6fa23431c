"""Shared parts of the crash sweeps: a forked process, killed before its n-th durable step, and its data directory.

A step is anything that can be durable: a transaction of the catalog, a system call by which journals or the store
write, publish, delete or sync, or a request to the bucket. Archives are in a directory, or below a prefix of
``CHOCKSTONE_SWEEP_BUCKET``. A sweep is a script; the parent has no threads, so that it can fork: whatever needs an
event loop runs in a child.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from chockstone.backends.run_spec import RunSpec
from chockstone.catalog.database.database import Database
from chockstone.checkpoints import Store, open_store
from chockstone.engine.engine import Engine
from support.stores import S3Place

SESSION, RUN = "s", "s:train:0"
BUCKET = os.environ.get("CHOCKSTONE_SWEEP_BUCKET")
Say = Callable[[object], None]  # sends JSON to the parent


class StepKiller:
    """Counts durable steps, and kills this process before one of them."""

    def __init__(self, step: int, calls: Sequence[str], *, is_armed: bool = True) -> None:
        """``calls``: the functions of ``os`` that are steps. Steps count from when it is armed."""
        self._step = step
        self._calls = calls
        self._is_armed = is_armed
        self.count = 0

    def arm(self) -> None:
        self._is_armed = True

    def watch(self) -> None:
        """Count and kill in this process from now on."""
        run = Database.run

        async def watched_run(database: Database, work: Any, *, writes: bool) -> Any:
            if writes:
                self._come_to_a_step()
            return await run(database, work, writes=writes)

        Database.run = watched_run  # type: ignore[method-assign]  # that is the point
        for name in self._calls:
            setattr(os, name, self._watched(getattr(os, name)))
        if BUCKET is not None:
            from chockstone.checkpoints.stores.s3_connection import S3Connection

            S3Connection.request_now = self._watched(S3Connection.request_now)  # type: ignore[method-assign]  # that is the point

    def _come_to_a_step(self) -> None:
        if not self._is_armed:
            return
        self.count += 1
        if self.count == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*values: Any, **facts: Any) -> Any:
            self._come_to_a_step()
            return call(*values, **facts)

        return watched


def in_child(work: Callable[[Say], Awaitable[None]]) -> tuple[list[Any], int]:
    """What a forked process said, and its wait status."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            asyncio.run(work(lambda told: os.write(writer, orjson.dumps(told) + b"\n")))  # type: ignore[arg-type, func-returns-value]  # a coroutine
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    said = b""
    while chunk := os.read(reader, 65536):
        said += chunk
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    return [orjson.loads(line) for line in said.splitlines()], status


def make_data(data: Path) -> None:
    """An empty data directory, with a prefix of its own in the bucket."""
    shutil.rmtree(data, ignore_errors=True)
    (data / "checkpoints").mkdir(parents=True)
    give_prefix(data)


def give_prefix(data: Path) -> None:
    """A prefix that nobody has used."""
    (data / "prefix").write_text(f"{BUCKET}/{secrets.token_hex(8)}")


def store_url(data: Path) -> str | None:
    return None if BUCKET is None else (data / "prefix").read_text()


def store_of(data: Path) -> Store:
    return open_store(store_url(data) or data / "checkpoints")


def prepare_imports() -> None:
    """Import what every child needs once, in the parent."""
    if BUCKET is not None:
        import chockstone.checkpoints.stores.s3_bucket  # noqa: F401


async def open_run(engine: Engine) -> str:
    """Ask for the one run of a sweep; returns the request id."""
    return await engine.training.open(
        SESSION,
        0,
        owner="ann",
        base_model="tiny",
        spec=RunSpec(rank=8, seed=1),
        optimizer={"type": "adamw"},
        user_metadata={},
        project_id=None,
    )


def run_script(script: str, home: Path, *arguments: object, place: S3Place | None = None) -> str:
    """Run a sweep, for a test; what it printed. It found nothing wrong."""
    path = Path(__file__).with_name(script)
    environment = {**os.environ, "PYTHONPATH": str(path.parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    if place is not None:
        environment = {**place.environment(environment), "CHOCKSTONE_SWEEP_BUCKET": place.url}
    command = [sys.executable, str(path), str(home), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
