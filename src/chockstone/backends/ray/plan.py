"""The Ray plan: how many workers a server wants on which cluster, and how the driver process is spawned."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from chockstone.backends.supervision.process import MODEL_ENVIRONMENT, WorkerConfig, WorkerProcess, spawn

# -P: see ``process``.
COMMAND: Final = (sys.executable, "-P", "-m", "chockstone.backends.ray.driver")
_VARIABLE: Final = "CHOCKSTONE_RAY"
_LEAVE_SECONDS: Final = 20.0  # for Ray to end its processes
_SECRETS: Final = ("CHOCKSTONE_", "TINKER_", "PG")  # API keys of users, passwords of the catalog
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # workers that fail because another worker died
}
_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # makes Ray listen on the loopback interface only
_CREDENTIALS: Final = ("AWS_", "GOOGLE_", "AZURE_")  # credentials of the store


@dataclass(frozen=True, slots=True)
class RayPlan:
    workers: int = 1
    min_workers: int | None = None  # None: no fewer than ``workers``
    address: str | None = None  # of a running cluster; None: the driver starts a cluster
    join_seconds: float = 60.0  # for the cluster to answer
    place_seconds: float = 30.0  # to place all workers; after that fewer will do, down to ``min_workers``

    @property
    def fewest(self) -> int:
        return self.workers if self.min_workers is None else self.min_workers


def spawn_driver(
    plan: RayPlan, config: WorkerConfig, *, inherit: Sequence[int] = (), command: Sequence[str] = COMMAND
) -> WorkerProcess:
    """Spawn the driver. ``inherit`` are descriptors that it keeps open until its group ends. Raises OSError.

    Processes of a cluster that the driver starts inherit its environment. Secrets of the server are removed from it,
    except for the credentials of the store, which the workers need. Workers of a running cluster have their own
    credentials. A cluster that the driver starts listens on the loopback interface only and requires a token.
    """
    hidden = _SECRETS if plan.address is None else _SECRETS + _CREDENTIALS
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {**MODEL_ENVIRONMENT, **_QUIET}
    environment[_VARIABLE] = orjson.dumps({"plan": asdict(plan), "config": asdict(config)}).decode()
    if plan.address is None:
        environment |= _LOOPBACK | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return spawn(command, environment=environment, inherit=inherit, leave_seconds=_LEAVE_SECONDS)


def take_plan() -> tuple[RayPlan, WorkerConfig]:
    """Read plan and configuration from the environment, and remove them from it: child processes inherit it."""
    settings = orjson.loads(os.environ.pop(_VARIABLE))
    return RayPlan(**settings["plan"]), WorkerConfig(**settings["config"])
