"""Read the job, attempt and rank of this process from the environment variables of schedulers. Does no I/O.

An attempt number that repeats is harmless: the processes are incarnations of one attempt, in the order of their claims.
A number that decreases is not, because a new attempt would rank below older ones. So the number of the outermost
platform counts. If that platform restarts jobs without counting, every inner count starts again with each restart, and
none is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from chockstone.checkpoints.errors import ResumeError
from chockstone.checkpoints.resume.attempts.roots import MAX_ATTEMPT

PlatformName = Literal["skypilot", "jobset", "slurm", "kubernetes", "torchelastic", "none"]

MAX_COUNT: Final = MAX_ATTEMPT
_COUNT = re.compile(r"[0-9]{1,5}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # becomes part of paths and of object names


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Which job, attempt and rank this process is.

    ``attempt`` is None if no platform counts attempts: the chain then takes the number after the newest attempt.
    ``job`` stays the same when the platform restarts the job, and differs between jobs and array tasks; users put it
    into the root, which alone decides what belongs to one chain. ``why`` explains the attempt number to people.
    """

    platform: PlatformName
    attempt: int | None
    rank: int
    world_size: int
    job: str | None
    why: str

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> JobIdentity:
        """Raises ResumeError with the name of the variable for a value that no platform sets."""
        rank, world_size = _rank(environ)
        found = [platform for platform in _OUTERMOST_FIRST if any(environ.get(name) for name in platform.markers)]
        restarts = {platform: platform.restarts(environ) for platform in found}
        if not found:
            return cls("none", None, rank, world_size, None, why=f"no scheduler found: {_AFTER_NEWEST}")
        outer, inner = found[0], found[1:]
        attempt = restarts[outer] if outer.numbers_attempts else None
        return cls(
            platform=outer.name,
            attempt=attempt,
            rank=rank,
            world_size=world_size,
            job=_job(environ, outer),
            why="; ".join([_of_outer(environ, outer, attempt), *_of_inner(environ, inner, restarts, attempt)]),
        )


@dataclass(frozen=True, slots=True)
class _Platform:
    name: PlatformName
    title: str
    markers: tuple[str, ...]  # the platform is present if one of these is set and not empty
    counter: str | None = None
    uncounted: int | None = None  # the count if the counter is not set
    restarts_in_place: bool = False
    jobs: tuple[tuple[str, ...], ...] = ()  # the first tuple whose variables are all set names the job

    @property
    def numbers_attempts(self) -> bool:
        return self.counter is not None and not self.restarts_in_place

    def restarts(self, environ: Mapping[str, str]) -> int | None:
        if self.counter is None:
            return None
        return _count(environ, self.counter) if environ.get(self.counter) else self.uncounted


# SkyPilot keeps the id of a task over all recoveries, and shows no count. JobSet has its count in an annotation, which
# a manifest puts into the variable. Slurm sets its count from the first requeue on. Kubernetes restarts the pods
# of a Job without a count; it comes after Slurm, because a Slurm job submitted from a pod inherits the pod's variables.
# The agent of torchelastic counts failures of its workers, from zero in each process of the agent: enough to know of a
# restart, not to number attempts.
_OUTERMOST_FIRST = (
    _Platform("skypilot", "SkyPilot", ("SKYPILOT_TASK_ID",), jobs=(("SKYPILOT_TASK_ID",),)),
    _Platform("jobset", "JobSet", ("JOBSET_RESTART_ATTEMPT",), "JOBSET_RESTART_ATTEMPT", jobs=(("JOBSET_NAME",),)),
    _Platform(
        "slurm",
        "Slurm",
        ("SLURM_JOB_ID",),
        "SLURM_RESTART_COUNT",
        uncounted=0,
        jobs=(("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"), ("SLURM_JOB_ID",)),
    ),
    _Platform("kubernetes", "Kubernetes", ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")),
    _Platform(
        "torchelastic",
        "torchelastic",
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        "TORCHELASTIC_RESTART_COUNT",
        uncounted=0,
        restarts_in_place=True,
    ),
)
_AFTER_NEWEST = "this is the one after the newest attempt there"


def _of_outer(environ: Mapping[str, str], outer: _Platform, attempt: int | None) -> str:
    job = _job(environ, outer)
    named = outer.title if job is None else f"{outer.title} job {job}"
    if attempt is None:
        return f"{named} does not number its attempts: {_AFTER_NEWEST}"
    said = f"is {attempt}" if environ.get(outer.counter or "") else "is not set, as in a first start"
    return f"attempt {attempt} of {named}, because {outer.counter} {said}"


def _of_inner(
    environ: Mapping[str, str], inner: list[_Platform], restarts: dict[_Platform, int | None], attempt: int | None
) -> list[str]:
    said = []
    for each in inner:
        if each.counter is None or not environ.get(each.counter):
            continue
        count = restarts[each]
        if attempt is None or not each.restarts_in_place:
            said.append(f"{each.counter} is {count} and is not used, since {each.title} starts over with each attempt")
        elif count:
            said.append(f"{each.counter} is {count}: started again in place, within that attempt")
    return said


def _job(environ: Mapping[str, str], platform: _Platform) -> str | None:
    for names in platform.jobs:
        values = [environ.get(name, "") for name in names]
        if not all(values):
            continue
        for name, value in zip(names, values, strict=True):
            if _JOB.fullmatch(value) is None:
                raise ResumeError(
                    f"{name}={_shown(value)} cannot name a job of {platform.title}: letters, digits, '.', '_' and '-' "
                    f"are expected. Give Resume its root and attempt yourself."
                )
        return "_".join(values)
    return None


def _rank(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and world size from the launcher of the processes, or else from the scheduler."""
    pairs = (
        ("RANK", "WORLD_SIZE"),
        # Not SLURM_NTASKS: a batch script has it too, where one process runs whatever was asked for.
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
        ("JOB_COMPLETION_INDEX", "WORLD_SIZE"),
    )
    for rank_name, size_name in pairs:
        if not (environ.get(rank_name) and environ.get(size_name)):
            continue
        rank, world_size = _count(environ, rank_name), _count(environ, size_name)
        if rank >= world_size:
            raise ResumeError(
                f"{rank_name}={rank} is not a rank among {size_name}={world_size}, which count from 0. "
                f"Was one of them left over from another launcher?"
            )
        return rank, world_size
    _refuse_half(environ)
    return 0, 1


def _refuse_half(environ: Mapping[str, str]) -> None:
    """Refuse a rank without a world size: the process would take itself for the only one, and save and fence too."""
    if environ.get("RANK"):
        raise ResumeError(f"RANK={_shown(environ['RANK'])} is set and WORLD_SIZE is not. Set both, or neither.")
    if environ.get("WORLD_SIZE") and _count(environ, "WORLD_SIZE") != 1:
        raise ResumeError(f"WORLD_SIZE={environ['WORLD_SIZE']} is set and RANK is not. Set both, or neither.")
    if environ.get("JOB_COMPLETION_INDEX") and (index := _count(environ, "JOB_COMPLETION_INDEX")) > 0:
        raise ResumeError(
            f"JOB_COMPLETION_INDEX={index} says that there are others, and nothing says how many. If they train one "
            f"model together, set WORLD_SIZE to the completions of the Job; if each trains its own, give each a root "
            f"with the index in it, and set RANK=0 and WORLD_SIZE=1."
        )


def _count(environ: Mapping[str, str], name: str) -> int:
    value = environ[name]
    if _COUNT.fullmatch(value) is None:
        raise ResumeError(
            f"{name}={_shown(value)} is not a number from 0 to {MAX_COUNT}. "
            f"Unset it if nothing here sets it on purpose, or give Resume its attempt, rank and world_size yourself."
        )
    return int(value)


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:60] + "…")
