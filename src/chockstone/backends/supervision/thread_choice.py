"""Thread choice: with how many threads a worker computes, and why.

The default is a thread for each core that the process may use. torch counts the cores of the CPU affinity by itself,
but not what a cgroup allows: in a container with ``--cpus 2`` on a machine of 64 cores it would start 64 threads, which
then stand still for most of each period. Imports no torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

log = logging.getLogger(__name__)
VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # with which a user overrides the default
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUPS: Final = Path("/proc/self/cgroup")
_TOPOLOGY: Final = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    threads: int
    reason: str
    must_be_set: bool  # False: torch takes this number by itself


def choose_threads(
    setting: int, environ: Mapping[str, str], *, cores: int, limit_cores: float | None, replicas: int = 1
) -> ThreadChoice:
    """The threads of each of ``replicas`` workers. ``setting`` 0 means auto.

    ``limit_cores`` is the CPU time that cgroups allow, in cores. It is rounded to whole threads.
    """
    if setting:
        return ThreadChoice(setting, "the setting", must_be_set=True)
    named = next((name for name in VARIABLES if environ.get(name)), None)
    if named is not None and replicas == 1:
        first = environ[named].partition(",")[0].strip()  # a list has a number for each level of nesting
        if first.isdecimal() and int(first):
            return ThreadChoice(int(first), f"{named} in the environment", must_be_set=False)
    allowed, reason = cores, f"a thread for each core ({cores})"
    if limit_cores is not None and limit_cores < cores:
        allowed = max(1, int(limit_cores + 0.5))
        reason = f"the CPU limit of the cgroup ({limit_cores:.4g} of {cores} cores)"
    if replicas > 1:
        return ThreadChoice(max(1, allowed // replicas), f"{reason}, shared by {replicas} replicas", must_be_set=True)
    return ThreadChoice(allowed, reason, must_be_set=allowed < cores)


def choose_threads_here(setting: int, *, replicas: int = 1) -> ThreadChoice:
    """For this process and its children."""
    return choose_threads(setting, os.environ, cores=count_cores(), limit_cores=read_limit(), replicas=replicas)


def usable_cores() -> int:
    """Whole cores that this process may use, whatever the environment says: fewer where a cgroup limits it."""
    return choose_threads(0, {}, cores=count_cores(), limit_cores=read_limit()).threads


def report_threads(threads: int, choice: ThreadChoice) -> None:
    """``threads``: with which torch computes now."""
    reason = choice.reason if threads == choice.threads else "the default of torch"
    log.info("threads chosen threads=%d reason=%s", threads, reason)


def count_cores(topology: Path = _TOPOLOGY) -> int:
    """Physical cores of the CPU affinity: torch does not start a second thread on a core."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores: set[tuple[str, str]] = set()
    allowed = os.sched_getaffinity(0)
    for cpu in allowed:
        facts = topology / f"cpu{cpu}" / "topology"
        try:
            cores.add(((facts / "physical_package_id").read_text().strip(), (facts / "core_id").read_text().strip()))
        except OSError:
            return len(allowed)
    return len(cores)


def read_limit(own: Path = _OWN_CGROUPS, mounted: Path = _CGROUPS) -> float | None:
    """The smallest CPU limit of the cgroups that this process is in, in cores. None: no limit is known."""
    limits = [limit for directory in _directories(own, mounted) if (limit := _read_one(directory)) is not None]
    return min(limits, default=None)


def _directories(own: Path, mounted: Path) -> Iterator[Path]:
    """Of version 2 and of version 1: the process's cgroup and all above it. A container sees its own at the top."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mounted / controllers if controllers else mounted
        inside = PurePosixPath(path.lstrip("/"))
        if ".." in inside.parts:  # outside of what this namespace shows
            inside = PurePosixPath()
        for part in (inside, *inside.parents):
            yield root / part


def _read_one(directory: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else _cores(quota, period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((directory / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if int(quota) < 0 else _cores(quota, period)
    return None


def _cores(quota: str, period: str) -> float | None:
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
