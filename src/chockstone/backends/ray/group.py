"""The Ray worker group: reserves places for the workers of one server, starts them, and waits for their end."""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from chockstone import __version__
from chockstone.backends.ray.actor import ChockstoneWorker
from chockstone.backends.ray.plan import RayPlan
from chockstone.backends.ray.resources import bundle_of, describe_shortage, how_many_fit
from chockstone.backends.ray.temp_directory import TempDirectory
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.supervision.thread_choice import usable_cores

log = logging.getLogger(__name__)
_LOOPBACK: Final = "127.0.0.1"
_REACH_SECONDS: Final = 10.0
_START_SECONDS: Final = 120.0  # for a placed process to start, from disks that may be slow
_NEXT_SECONDS: Final = 2.0  # to place fewer workers, when their resources are known to be free
_LEAVE_SECONDS: Final = 30.0  # for the other ranks to end after the first one
_BLAME_SECONDS: Final = 2.0  # for Ray to report the death that another worker has noticed
_OBJECT_STORE_BYTES: Final = 80 << 20  # the minimum of Ray; we store nothing in it


class RayRefused(Exception):
    """The group cannot be started, and the next attempt would fail, too."""


class RayWorkerLost(Exception):
    """The group has lost a worker, or could not be started this time."""


@dataclass(frozen=True, slots=True)
class RayWorker:
    """One worker, and where it runs."""

    rank: int
    node_id: str
    host: str
    port: int  # a free port there
    pid: int

    @property
    def rendezvous(self) -> str:
        """The address at which the other ranks connect to this one."""
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"worker {self.rank} (process {self.pid} on {self.host})"


class RayWorkerGroup:
    def __init__(self, plan: RayPlan, config: WorkerConfig) -> None:
        self._plan = plan
        self._config = config
        self._is_own = plan.address is None
        self._temp_directory: TempDirectory | None = None  # of a cluster that we start
        self._places: PlacementGroup | None = None
        self._actors: list[Any] = []  # Any: Ray's handles
        self._cpus = config.threads or (max(1, usable_cores() // plan.workers) if self._is_own else 1)

    def join(self) -> str:
        """Join the cluster. Returns the address at which its workers reach this machine. Raises RayRefused."""
        if self._plan.address is None:
            self._start_cluster()
            return _LOOPBACK
        try:
            _reach(self._plan.address)
            ray.init(address=self._plan.address, logging_level=logging.ERROR, log_to_driver=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise RayRefused(
                f"the Ray cluster at {self._plan.address!r} cannot be joined: {_first_line(error)}. It must run Ray "
                f"{ray.__version__} as this server does, and this machine must be one of its nodes"
            ) from error
        return str(ray.util.get_node_ip_address())

    def place(self) -> list[RayWorker]:
        """Start the workers.

        Raises RayRefused when there is no place for the minimum number of workers, and RayWorkerLost.
        """
        total, bundle = self._bundle()
        self._places = self._reserve(bundle, total)
        count = self._places.bundle_count
        kind = ray.remote(ChockstoneWorker)
        self._actors = [
            kind.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._places, placement_group_bundle_index=index
                ),
            ).remote()
            for index in range(count)
        ]
        return self._describe()

    def run(self, members: list[RayWorker], *, host: str, port: int, token: str) -> None:
        """Run until all workers have ended. Raises RayWorkerLost as soon as one fails."""
        settings: dict[str, Any] = {
            "config": asdict(replace(self._config, threads=self._cpus)),
            "world_size": len(members),
            "rendezvous": members[0].rendezvous,
            "host": host,
            "port": port,
        }
        runs = {}
        for member, actor in zip(members, self._actors, strict=True):
            secret = {"token": token} if member.rank == 0 else {}
            runs[actor.run.remote(orjson.dumps({**settings, **secret, "rank": member.rank}).decode())] = member
        has_ended = False
        while runs:
            ended, _ = ray.wait(list(runs), num_returns=1, timeout=_LEAVE_SECONDS if has_ended else None)
            if not ended:
                log.warning("workers killed ranks=%s reason=others have ended", [str(each) for each in runs.values()])
                return
            member = runs.pop(ended[0])
            try:
                ray.get(ended[0])
            except RayError as error:
                raise _blame(member, error, runs) from error
            has_ended = True

    def close(self) -> None:
        """Kill the remaining workers and leave the cluster; a cluster that we started ends."""
        with suppress(Exception):  # errors of Ray do not matter any more
            for actor in self._actors:
                ray.kill(actor, no_restart=True)
            if self._places is not None:
                remove_placement_group(self._places)
        ray.shutdown()
        if self._temp_directory is not None:
            self._temp_directory.remove()

    def _start_cluster(self) -> None:
        """On this machine, and for this machine only."""
        try:
            self._temp_directory = TempDirectory()
            ray.init(
                address="local",
                num_cpus=self._cpus * self._plan.workers,
                num_gpus=0 if self._config.device == "cpu" else None,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                logging_level=logging.ERROR,
                log_to_driver=True,
                _temp_dir=self._temp_directory.temporary,
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise RayWorkerLost(f"Ray could not be started on this machine: {error}") from error

    def _bundle(self) -> tuple[Mapping[str, float], dict[str, float]]:
        total: Mapping[str, float] = ray.cluster_resources()
        return total, bundle_of(cpus=self._cpus, device=self._config.device, total=total)

    def _reserve(self, bundle: dict[str, float], total: Mapping[str, float]) -> PlacementGroup:
        """Reserve places for all workers, or for as many as there is room for when that takes too long."""
        count = self._plan.workers
        seconds = self._plan.place_seconds
        while count >= self._plan.fewest:
            places: PlacementGroup = placement_group([bundle] * count, strategy="PACK")
            if places.wait(seconds):
                return places
            remove_placement_group(places)
            count = min(count - 1, how_many_fit(bundle, ray.available_resources()))
            seconds = min(seconds, _NEXT_SECONDS)
        raise RayRefused(
            describe_shortage(
                self._plan.workers,
                self._plan.fewest,
                bundle,
                total=ray.cluster_resources() or total,
                free=ray.available_resources(),
                seconds=self._plan.place_seconds,
            )
        )

    def _describe(self) -> list[RayWorker]:
        """Where the workers run.

        Raises RayRefused if a worker has another version of Chockstone, or does not see the server's files.
        """
        with _Probe(self._config) as paths:
            request = orjson.dumps({"paths": paths}).decode()
            try:
                answers = ray.get([actor.describe.remote(request) for actor in self._actors], timeout=_START_SECONDS)
            except GetTimeoutError:
                raise RayWorkerLost(
                    f"workers were placed, but did not start within {_START_SECONDS:g} seconds"
                ) from None
            except RayActorError as error:
                raise RayWorkerLost(f"a worker could not be started: {_first_line(error)}") from error
        members = []
        for rank, answer in enumerate(map(orjson.loads, answers)):
            host = answer["host"]
            if answer["version"] != __version__:
                raise RayRefused(
                    f"the node {host} has Chockstone {answer['version']}, and this server {__version__}; install the "
                    "same on every node"
                )
            if answer["missing"]:
                raise RayRefused(
                    f"the node {host} does not see {answer['missing'][0]!r} of this server. Models and a store in a "
                    "directory must be under the same path on every node; or choose a bucket with --store s3://…"
                )
            members.append(RayWorker(rank, answer["node_id"], host, answer["port"], answer["pid"]))
        return members


class _Probe:
    """Creates a file in the store for as long as the block runs. Yields all paths that the workers must see."""

    def __init__(self, config: WorkerConfig) -> None:
        self._models = list(config.models.values())
        is_directory = "://" not in config.store
        self._file = Path(config.store, f".seen-{uuid.uuid4().hex}") if is_directory else None

    def __enter__(self) -> list[str]:
        if self._file is None:
            return self._models
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch()
        return [*self._models, str(self._file)]

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _blame(
    member: RayWorker, error: RayError, others: Mapping[Any, RayWorker]
) -> RayWorkerLost:  # Any: references to Ray tasks
    """Blame the worker that died, if one did: the others fail because of it."""
    if isinstance(error, RayTaskError) and others:
        for run in ray.wait(list(others), num_returns=len(others), timeout=_BLAME_SECONDS)[0]:
            try:
                ray.get(run)
            except RayActorError as death:
                return RayWorkerLost(f"{others[run]} {_explain(death, others[run])}")
            except RayError:
                continue
    return RayWorkerLost(f"{member} {_explain(error, member)}")


def _explain(error: RayError, member: RayWorker) -> str:
    if isinstance(error, RayTaskError):
        return f"failed: {error.cause}"
    with suppress(RayError, RuntimeError):
        if not any(node["NodeID"] == member.node_id and node["Alive"] for node in ray.nodes()):
            return "was lost with its node"
    return "died"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")


def _reach(address: str) -> None:
    """Raises OSError if nothing listens there: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
