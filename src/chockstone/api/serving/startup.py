"""Startup: locks the data directory and binds the socket, then starts the worker, before anything else is loaded.

Light to import, so that the worker loads torch while the server imports its other modules.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chockstone.api.config import ServerConfig
from chockstone.backends.ray.plan import RayPlan, spawn_driver
from chockstone.backends.supervision.cuda import visible_gpus
from chockstone.backends.supervision.process import WorkerConfig, WorkerProcess, spawn_worker
from chockstone.backends.supervision.replica_configs import further_config, replica_configs
from chockstone.backends.supervision.thread_choice import choose_threads_here, report_threads, usable_cores
from chockstone.engine.ownership.catalog_claim import CatalogRefused, require_catalog_within
from chockstone.engine.ownership.data_directory import (
    ARCHIVES,
    STORE_RECORD,
    DirectoryInUse,
    is_open_to_others,
    owned,
    private_files,
)
from chockstone.engine.ownership.keys_record import KeysRecord
from chockstone.engine.ownership.lock_holder import LockHolder, find_holder, record_holder
from chockstone.telemetry.log_format import configure_logging

log = logging.getLogger(__name__)
_BACKLOG: Final = 4096
_OPEN_FILES: Final = 65_536
_LOCK_SECONDS: Final = 10.0  # to wait for the previous server, or its worker, to end
_GRACE_SECONDS: Final = 3.0  # for a server that was just asked to stop to record that; its event loop may be busy

_BIND_ERRORS: Final = {
    errno.EADDRINUSE: (
        "another program listens there",
        "stop it, or choose another port with --port (0 picks a free one)",
    ),
    errno.EACCES: ("this user may not use that port", "choose one above 1023 with --port"),
    errno.EADDRNOTAVAIL: ("this machine does not have that address", "choose another with --host"),
}

Announce = Callable[[int, Sequence[str]], None]  # called with the port and the users that have a key


class CannotStart(Exception):
    """The environment prevents the start; the message says what and how to mend it."""


@dataclass(frozen=True, slots=True)
class ServerClaim:
    """The data directory and the port of this server."""

    lock: int  # of the data directory
    sock: socket.socket  # bound: clients that connect wait in its backlog

    @property
    def address(self) -> str:
        return _address(*self.sock.getsockname()[:2])

    def note_stopping(self) -> None:
        """Record that this server stops, so that the next one waits for the lock instead of refusing to start."""
        record_holder(self.lock, address=self.address, is_stopping=True)


@dataclass(frozen=True, slots=True)
class Prepared:
    claim: ServerClaim
    worker_configs: tuple[WorkerConfig, ...]  # by replica
    worker: WorkerProcess  # of the first replica


@contextlib.contextmanager
def claimed(config: ServerConfig) -> Iterator[ServerClaim]:
    """The lock and the socket end with the block. Raises CannotStart, naming both where neither can be had."""
    configure_process(config)
    with private_files(), _lock_directory(config) as lock, bind(config.host, config.port) as sock:
        claim = ServerClaim(lock, sock)
        record_holder(lock, address=claim.address)
        yield claim


@contextlib.contextmanager
def prepared(config: ServerConfig, claim: ServerClaim) -> Iterator[Prepared]:
    """The worker ends with the block. Raises CannotStart."""
    with private_files():
        _warn_of_readers(config)
        _check_catalog(config)
        _claim_store(config)
        settings = worker_configs(config)
        try:
            worker = _spawn(config, settings[0], claim.lock)
        except OSError as error:
            raise CannotStart(f"the worker process cannot be started: {error}") from error
        try:
            yield Prepared(claim, settings, worker)
        finally:
            worker.end()


def require_keys(config: ServerConfig, *, has_keys: bool, keys: KeysRecord | None = None) -> None:
    """Raises CannotStart for a server without keys that other machines can reach, or that had keys before."""
    if has_keys:
        return
    make = "make one with `chockstone keys create USER`"
    if not config.is_local:
        raise CannotStart(
            f"the host {config.host!r} can be reached from other machines, and no user has a key; {make}, or listen on "
            "127.0.0.1"
        )
    if config.public_url is not None:
        raise CannotStart(
            f"clients on other machines reach the server at {config.public_url!r} (--public-url), and no user has a "
            f"key; {make}, or leave --public-url out"
        )
    if keys is not None and keys.is_there:
        raise CannotStart(
            f"the server on the data directory {str(config.data)!r} had API keys before, and has none now: no --key is "
            f"given and the catalog holds none. Give the keys again, or {make}. To let everyone on this machine in "
            f"without a key, as an administrator, remove {str(keys.path)!r}"
        )


def configure_process(config: ServerConfig) -> None:
    """Set up logging and raise the limit of open files, as every serving process does first."""
    _raise_file_limit()
    configure_logging(config.log_level, config.log_format)


def ray_plan(config: ServerConfig) -> RayPlan:
    return RayPlan(config.workers, config.min_workers, config.ray_address)


def _spawn(config: ServerConfig, settings: WorkerConfig, lock: int) -> WorkerProcess:
    if config.backend == "ray":
        return spawn_driver(ray_plan(config), settings, inherit=[lock])
    return spawn_worker(settings, inherit=[lock])


def worker_configs(config: ServerConfig) -> tuple[WorkerConfig, ...]:
    """One for each replica of the worker. On Ray the cluster divides its cores and GPUs among them."""
    if config.backend == "ray":
        return (_worker_config(config),) * config.replicas
    gpus = [] if config.replicas == 1 else visible_gpus(config.device)
    configs = replica_configs(_worker_config(config), config.replicas, cores=usable_cores(), gpus=gpus)
    if len(configs) > 1 and not config.threads:
        report_threads(configs[0].threads, choose_threads_here(0, replicas=len(configs)))
    return configs


def further_worker_config(config: ServerConfig, prepared: Prepared, number: int) -> WorkerConfig:
    """That of a replica that joins the running server."""
    if config.backend == "ray":
        return prepared.worker_configs[0]
    return further_config(prepared.worker_configs, number, gpus=visible_gpus(config.device))


def _worker_config(config: ServerConfig) -> WorkerConfig:
    return WorkerConfig(
        models={name: str(directory.resolve()) for name, directory in config.models.items()},
        store=config.store_url,
        device=config.device,
        dtype=config.dtype,
        base_precision=config.base_precision,
        threads=config.threads,
        max_sequences=config.max_sequences,
        prefix_cache_bytes=config.prefix_cache_bytes,
        tokens_per_micro_batch=config.tokens_per_micro_batch,
        activation_checkpointing=config.activation_checkpointing,
        router_replay=config.router_replay,
        memory_check=config.memory_check,
        log_level=config.log_level,
        log_format=config.log_format,
        otlp_endpoint=config.tracing.endpoint,
        trace_ratio=config.tracing.ratio,
    )


@contextlib.contextmanager
def _lock_directory(config: ServerConfig) -> Iterator[int]:
    """Lock the directory for as long as this server or its worker runs. Yields the lock's descriptor.

    A server that has ended, or is stopping, is waited for. One that runs is refused after the grace period.
    """
    data, grace_ends = config.data, time.monotonic() + _GRACE_SECONDS
    try:
        data.mkdir(parents=True, exist_ok=True)
        (data / ARCHIVES).mkdir(exist_ok=True)
        ownership = contextlib.ExitStack()
        lock = ownership.enter_context(
            owned(
                data,
                wait_seconds=_LOCK_SECONDS,
                on_wait=lambda: (
                    None if _runs(data) else log.warning("waiting for the server that uses %s to end", data)
                ),
                gives_up=lambda: time.monotonic() > grace_ends and _runs(data),
            )
        )
    except OSError as error:
        raise CannotStart(f"the data directory {str(data)!r} cannot be used: {error.strerror}") from error
    except DirectoryInUse:
        raise _in_use(config, find_holder(data)) from None
    with ownership:
        yield lock


def _runs(data: Path) -> bool:
    """Whether the lock is held by a server on this machine that does not stop."""
    holder = find_holder(data)
    return holder is not None and not holder.is_stopping


def _in_use(config: ServerConfig, holder: LockHolder | None) -> CannotStart:
    if holder is None:
        stop = "Stop it"
    else:
        stop = f"It is process {holder.pid} and listens on {holder.address}. Stop it with `kill {holder.pid}`"
    in_use = f"another server uses the data directory {str(config.data)!r}"
    problems = [f"{in_use}. {stop}, or choose another directory with --data"]
    try:
        bind(config.host, config.port).close()
    except CannotStart as error:
        problems.append(str(error))
    return CannotStart("\n".join(problems))


def _check_catalog(config: ServerConfig) -> None:
    """A catalog outside the data directory is claimed later, by the server. Raises CannotStart."""
    if config.database is None:
        try:
            require_catalog_within(config.data)
        except CatalogRefused as error:
            raise CannotStart(str(error)) from error


def _claim_store(config: ServerConfig) -> None:
    """Claim a store outside the data directory, and discard its unfinished uploads. Raises CannotStart."""
    if config.store is None and not (config.data / STORE_RECORD).exists():
        return  # the store is in the data directory, which is locked
    from chockstone.checkpoints import open_store  # late: clients of object stores take long to import
    from chockstone.checkpoints.errors import StoreError
    from chockstone.engine.ownership.store_claim import StoreRefused, claim_store, sweep_unfinished

    try:
        store = open_store(config.store_url)
        claim_store(config.data, store)
    except (StoreError, StoreRefused) as error:
        raise CannotStart(f"the store cannot be used: {error}") from error
    except OSError as error:
        raise CannotStart(f"the data directory {str(config.data)!r} cannot be used: {error.strerror}") from error
    try:
        for partial in sweep_unfinished(store):
            log.info("unfinished upload discarded place=%s bytes=%d", partial.place, partial.size)
    except StoreError as error:
        log.warning("unfinished uploads not listed error=%s", error)


def _warn_of_readers(config: ServerConfig) -> None:
    """Warn of directories that other users can read: made by an older version, or opened by an administrator."""
    places = [config.data]
    if config.store is not None and "://" not in config.store:
        places.append(Path(config.store))
    for place in places:
        with contextlib.suppress(OSError):
            if is_open_to_others(place):
                log.warning(
                    "other users of this machine can read %s; keep them out with `chmod -R go-rwx %s`", place, place
                )


def _raise_file_limit() -> None:
    """Each waiting request is an open file, and one client may have thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(host: str, port: int) -> socket.socket:
    """Clients that connect wait in the backlog until the server answers. Raises CannotStart."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        reason, what_to_do = _BIND_ERRORS.get(error.errno or 0, (error.strerror, "choose another port with --port"))
        raise CannotStart(f"cannot listen on {_address(host, port)}: {reason}; {what_to_do}") from error
    return sock


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
