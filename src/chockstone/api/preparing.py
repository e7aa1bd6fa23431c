"""Preparing: what a server has before it has anything else: its directory, its socket, and a worker on its way.

Light to import, so that the worker loads torch while the server loads the rest of itself.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chockstone.api.config import ServerConfig
from chockstone.backends.process import WorkerConfig, WorkerProcess, spawn_worker
from chockstone.engine.data_directory import ARCHIVES, DirectoryInUse, owned

log = logging.getLogger(__name__)
_BACKLOG: Final = 4096
_OPEN_FILES: Final = 65_536
_LOCK_SECONDS: Final = 10.0  # for a server that was here before, or its worker, to end


class CannotStart(Exception):
    """Something outside is in the way; the message says what."""


@dataclass(frozen=True, slots=True)
class Prepared:
    lock: int  # of the data directory
    sock: socket.socket  # clients that connect wait there
    worker_config: WorkerConfig
    worker: WorkerProcess


@contextlib.contextmanager
def prepared(config: ServerConfig) -> Iterator[Prepared]:
    """All of it is given up, and the worker ended, with the block. Raises CannotStart."""
    _raise_file_limit()
    level = config.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with _own(config.data) as lock, _bind(config.host, config.port) as sock:
        told = worker_config(config)
        try:
            worker = spawn_worker(told, inherit=[lock])
        except OSError as error:
            raise CannotStart(f"the worker process cannot be started: {error}") from error
        try:
            yield Prepared(lock, sock, told, worker)
        finally:
            worker.end()


def worker_config(config: ServerConfig) -> WorkerConfig:
    return WorkerConfig(
        models={name: str(directory.resolve()) for name, directory in config.models.items()},
        store=config.store_url,
        device=config.device,
        dtype=config.dtype,
        threads=config.threads,
        max_sequences=config.max_sequences,
        tokens_per_micro_batch=config.tokens_per_micro_batch,
        log_level=config.log_level,
    )


@contextlib.contextmanager
def _own(data: Path) -> Iterator[int]:
    """Keep other servers out of the directory for as long as this one and its worker run. Yields the lock."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        (data / ARCHIVES).mkdir(exist_ok=True)
        ownership = contextlib.ExitStack()
        lock = ownership.enter_context(
            owned(
                data,
                wait_seconds=_LOCK_SECONDS,
                on_wait=lambda: log.warning("waiting for the server that uses %s to end", data),
            )
        )
    except OSError as error:
        raise CannotStart(f"the data directory {str(data)!r} cannot be used: {error.strerror}") from error
    except DirectoryInUse:
        raise CannotStart(
            f"another server uses the data directory {str(data)!r}; stop it, or choose another one with --data"
        ) from None
    with ownership:
        yield lock


def _raise_file_limit() -> None:
    """Each request that waits is an open file, and one client may have thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise CannotStart(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port"
        ) from error
    return sock
