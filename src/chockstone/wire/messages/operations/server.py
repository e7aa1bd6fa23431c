"""The server: messages that say how it is, and what needs a person."""

from __future__ import annotations

from typing import Any, Literal

from chockstone.wire.messages.schema import Response, Timestamp

WorkerState = Literal["starting", "ready", "restarting", "failing", "stopped"]
ProblemKind = Literal[
    "worker_not_ready",
    "worker_died",
    "journal_not_written",
    "catalog_unreachable",
    "store_unreachable",
    "disk_below_reserve",
    "disk_fills_soon",
    "model_not_loaded",
    "run_held",
    "run_waiting",
    "run_lost",
    "recovery_differs",
    "checkpoints_damaged",
    "trash_overdue",
    "sampler_gap",
]


class ServedModel(Response):
    name: str
    architecture: str | None = None
    max_context_length: int | None = None
    is_loaded: bool  # in the worker that runs now


class GpuReport(Response):
    name: str
    used_bytes: int  # by all processes on this GPU
    total_bytes: int


class HeldMemoryReport(Response):
    """What the base models and loaded runs hold, and what the runs will take besides once they have trained."""

    base_bytes: int
    runs_bytes: int
    promised_bytes: int
    available_bytes: int | None = None  # that may still be allocated


class ReplicaReport(Response):
    """One of several workers with the same models."""

    number: int
    state: WorkerState
    since: Timestamp
    restarts: int  # workers that died since the server started
    runs: int  # that it holds or is to recover
    is_leaving: bool = False  # its runs move to other replicas, and then its worker ends
    decoded_tokens: int = 0  # of samples, since its process started; as its last heartbeat said
    memory_bytes: int | None = None  # resident memory, as its last heartbeat said
    last_death: str | None = None
    last_death_at: Timestamp | None = None
    trouble: str | None = None  # why it does not become ready
    gpus: list[GpuReport] = []


class ReplicasResponse(Response):
    """The replicas that have not left, by number. A server with one worker lists that one."""

    replicas: list[ReplicaReport]
    is_elastic: bool  # replicas may join and leave


class WorkerReport(Response):
    """``failing``: several workers in a row died before they were ready. ``stopped``: no worker is started again."""

    state: WorkerState
    since: Timestamp
    generation: int  # workers that became ready since the server started
    restarts: int  # workers that died since the server started
    trouble: str | None = None  # why no worker becomes ready
    last_death: str | None = None
    last_death_at: Timestamp | None = None
    device: str | None = None  # absent before the first worker is ready, as are the next five
    dtype: str | None = None
    base_precision: str | None = None
    threads: int | None = None
    processes: int | None = None
    torch: str | None = None
    memory_bytes: int | None = None  # resident memory of the worker process, as its last heartbeat said
    gpus: list[GpuReport] = []
    held: HeldMemoryReport | None = None  # as the last heartbeat said
    replicas: list[ReplicaReport] = []  # empty if there is one worker; the fields above are of all together


class DiskReport(Response):
    """The file system of the data or of the archives, whichever has less space left.

    ``bytes_per_day`` is by how much its free space shrank in the last 24 hours, or since the server first looked if
    that is less than 24 hours and more than one hour. ``full_in_days`` is the free space above the reserve, divided by
    ``bytes_per_day``. Both are absent while unknown, and ``full_in_days`` while free space does not shrink.
    """

    free_bytes: int
    total_bytes: int
    used_bytes: int
    reserve_bytes: int  # no save may use it
    bytes_per_day: float | None = None
    full_in_days: float | None = None


class JournalReport(Response):
    mode: Literal["off", "on", "synced"]
    size_bytes: int  # of live runs
    trouble: str | None = None  # why it cannot be written


class QueueReport(Response):
    operations: int  # of runs, waiting or running
    samples: int
    oldest_wait_seconds: float | None = None  # of the operations; absent: none waits


class TokensPerSecond(Response):
    """Tokens per second, as the mean of the last minute, or of the time since the start if that is shorter."""

    trained: float
    sampled: float


class ProblemReport(Response):
    """Something that a person should know or do."""

    kind: ProblemKind
    what: str
    to_do: str
    since: Timestamp  # when it began, or when this server first saw it
    owner: str | None = None  # absent: the problem is the server's
    run_id: str | None = None
    tinker_path: str | None = None


class ServerResponse(Response):
    """For users who are no admins, runs, queue, tokens and problems of runs are their own."""

    version: str
    started_at: Timestamp
    uptime_seconds: float
    is_stopping: bool
    is_open: bool  # it has no API keys and accepts any
    is_admin: bool  # the caller
    models: list[ServedModel]
    worker: WorkerReport
    disk: DiskReport | None = None  # absent: it cannot be read
    journal: JournalReport
    runs: dict[str, int]  # by state
    queue: QueueReport
    tokens_per_second: TokensPerSecond
    problems: list[ProblemReport]
    settings: dict[str, Any] | None = None  # Any: plain JSON; for admins, without secrets
