"""Surroundings: what the variables of a process tell about which try of which job it is.

A number that stands still is harmless: several processes of one attempt are incarnations of it, in the order of their
claims. A number that goes back is not, because an attempt would look older than the ones it follows. So the outermost
platform found is the one whose number counts; if that one starts its jobs again without counting, then every number
inside starts over with it, and none is used. Nothing here is read from a disk or asked of a network.
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
    """``attempt`` is None where nothing counts: the chain then takes one after the newest attempt there.

    ``in_place`` is whether an earlier process of this attempt is known to have been there. ``job`` stays the same when
    the platform starts the job again and differs between jobs, array tasks among them; it is for the user to put into
    the root, which alone says what belongs to one chain. ``why`` is a sentence for people.
    """

    platform: PlatformName
    attempt: int | None
    rank: int
    world_size: int
    job: str | None
    in_place: bool
    why: str

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> JobIdentity:
        """Raises ResumeError, naming the variable, for a value that no platform would have set."""
        rank, world_size = _rank(environ)
        found = [platform for platform in _OUTERMOST_FIRST if any(environ.get(name) for name in platform.markers)]
        restarts = {platform: platform.restarts(environ) for platform in found}
        if not found:
            return cls("none", None, rank, world_size, None, in_place=False, why=f"no scheduler found: {_AFTER_NEWEST}")
        outer, inner = found[0], found[1:]
        attempt = restarts[outer] if outer.numbers_attempts else None
        return cls(
            platform=outer.name,
            attempt=attempt,
            rank=rank,
            world_size=world_size,
            job=_job(environ, outer),
            # Where nothing numbers the attempts, each start is a new one, whatever was started again.
            in_place=attempt is not None and any(restarts[each] for each in inner),
            why="; ".join([_of_outer(environ, outer, attempt), *_of_inner(environ, inner, restarts, attempt)]),
        )


@dataclass(frozen=True, slots=True)
class _Platform:
    name: PlatformName
    title: str
    markers: tuple[str, ...]  # any of these set, and not to nothing
    counter: str | None = None
    uncounted: int | None = None  # what a counter means that is not set
    restarts_in_place: bool = False
    jobs: tuple[tuple[str, ...], ...] = ()  # the first of these that is set as a whole

    @property
    def numbers_attempts(self) -> bool:
        return self.counter is not None and not self.restarts_in_place

    def restarts(self, environ: Mapping[str, str]) -> int | None:
        if self.counter is None:
            return None
        return _count(environ, self.counter) if environ.get(self.counter) else self.uncounted


# SkyPilot gives a task its id once, for all recoveries, and counts them nowhere a task could see. JobSet has its count
# in an annotation, which a manifest puts into the variable. Slurm sets its count from the first requeue on. Kubernetes
# starts the pods of a Job again without a count; it stands behind Slurm, whose jobs may be sent off from a pod and take
# its variables along. The agent of torchelastic counts failures of its workers, from zero in each of its own lives, and
# not every restart: enough to know of one, not to tell attempts apart.
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
    """The launcher of the processes knows best; then who started one process per task or per node."""
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
    """A process that takes itself for the only one would save and shut out beside its siblings."""
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
