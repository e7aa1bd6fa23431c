"""The plan: what a server wants of Ray, and how a process is spawned that goes and gets it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from chockstone.backends.supervision.process import SURROUNDINGS, WorkerConfig, WorkerProcess, spawn

# -P: see ``process``.
COMMAND: Final = (sys.executable, "-P", "-m", "chockstone.backends.ray.driver")
_VARIABLE: Final = "CHOCKSTONE_RAY"
_LEAVE_SECONDS: Final = 20.0  # for Ray to end its processes
_SECRETS: Final = ("CHOCKSTONE_", "TINKER_", "PG")  # keys of users, passwords of the catalog
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of workers that could not go on without the one that died
}
_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # how Ray is told to listen on no other interface
_CREDENTIALS: Final = ("AWS_", "GOOGLE_", "AZURE_")  # of the store


@dataclass(frozen=True, slots=True)
class RayPlan:
    workers: int = 1
    min_workers: int | None = None  # None: no fewer than ``workers``
    address: str | None = None  # of a cluster that runs; None: one of our own
    join_seconds: float = 60.0  # for the cluster to answer
    place_seconds: float = 30.0  # for all of them to find a place; then fewer will do, if they may

    @property
    def fewest(self) -> int:
        return self.workers if self.min_workers is None else self.min_workers


def spawn_driver(
    plan: RayPlan, config: WorkerConfig, *, inherit: Sequence[int] = (), command: Sequence[str] = COMMAND
) -> WorkerProcess:
    """The process that speaks to Ray. ``inherit`` are descriptors that it holds for as long as its group lives.

    Raises OSError.

    Ray's processes inherit its environment if it starts them: no secret of the server's is in it but, then,
    the credentials of the store, which the workers need. In a cluster that runs already they have their own.
    What it starts works for nobody else, neither on this machine nor from outside.
    """
    hidden = _SECRETS if plan.address is None else _SECRETS + _CREDENTIALS
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {**SURROUNDINGS, **_QUIET}
    environment[_VARIABLE] = orjson.dumps({"plan": asdict(plan), "config": asdict(config)}).decode()
    if plan.address is None:
        environment |= _LOOPBACK | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return spawn(command, environment=environment, inherit=inherit, leave_seconds=_LEAVE_SECONDS)


def take_plan() -> tuple[RayPlan, WorkerConfig]:
    """As the process was told them; they leave the environment, which others inherit."""
    told = orjson.loads(os.environ.pop(_VARIABLE))
    return RayPlan(**told["plan"]), WorkerConfig(**told["config"])
