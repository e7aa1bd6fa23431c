"""All runs: messages to list them with their state and load, and to show lineage and recoveries."""

from __future__ import annotations

from typing import Any, Literal

from chockstone.wire.messages.runs import Recovery
from chockstone.wire.messages.schema import Response, Timestamp

# ready: its operations execute as they come. recovering: it is rebuilt in the worker. waiting: for the worker, the
# catalog or the disk. held: until the server is restarted with other options. lost: no server can recover it. parked:
# on disk only, the next request wakes it. unloaded: it has ended.
OperatedRunState = Literal["ready", "recovering", "waiting", "held", "lost", "parked", "unloaded"]
RunSort = Literal[  # a minus sign: the largest or newest first
    "created",
    "-created",
    "last_request",
    "-last_request",
    "step",
    "-step",
    "loss",
    "-loss",
    "tokens",
    "-tokens",
    "owner",
    "-owner",
    "base_model",
    "-base_model",
    "bytes",
    "-bytes",
]
OperationState = Literal["queued", "running", "writing"]


class OperatedRun(Response):
    run_id: str
    session_id: str
    owner: str
    base_model: str
    rank: int  # 0: all weights are trained
    state: OperatedRunState
    waits_for: str | None = None  # why it is not ready
    step: int | None = None  # of the optimizer
    loss: float | None = None  # of the last forward_backward, mean over the weighted tokens
    tokens: int | None = None  # that it trained
    created_at: Timestamp
    last_request_at: Timestamp
    parent: str | None = None  # path of the checkpoint of another run that was loaded last
    queue_depth: int = 0  # operations that wait or run
    oldest_wait_seconds: float | None = None  # absent: no operation waits or runs
    journal_bytes: int = 0
    checkpoints: int
    checkpoint_bytes: int
    project_id: str | None = None
    user_metadata: dict[str, str]


class OperatedRunsResponse(Response):
    runs: list[OperatedRun]
    total_count: int  # on all pages
    cursor: str | None = None  # of the next page; absent: this is the last


class OperationUnderWay(Response):
    type: str
    seq_id: int | None = None
    state: OperationState  # writing: a save whose run continues
    since: Timestamp
    waited_seconds: float


class ReplayBacklogReport(Response):
    """What a recovery would replay: everything since the newest recovery archive."""

    steps: int
    operations: int
    seconds: float


class OperatedRunResponse(OperatedRun):
    operations: list[OperationUnderWay]  # the first thousand
    spec: dict[str, Any]  # Any: plain JSON
    optimizer: dict[str, Any]  # Any: plain JSON
    backlog: ReplayBacklogReport | None = None  # absent: the run is not in memory


class LineageRun(Response):
    """A run in a lineage. Of a run that the caller may not see, only ids and path are there."""

    run_id: str
    loaded: str | None = None  # path of the checkpoint that this run was made from
    depth: int  # 1: parent or child
    is_visible: bool
    owner: str | None = None
    base_model: str | None = None
    state: OperatedRunState | None = None
    step: int | None = None
    created_at: Timestamp | None = None


class LineageResponse(Response):
    run_id: str
    loaded: str | None = None  # path of the checkpoint that this run was made from
    ancestors: list[LineageRun]  # the parent first
    descendants: list[LineageRun]  # children first; of other users only for admins
    is_complete: bool  # False: there are more than are listed


class RecoveryOfRun(Recovery):
    recovery_id: int
    run_id: str
    owner: str


class AllRecoveriesResponse(Response):
    """Newest first."""

    recoveries: list[RecoveryOfRun]
    cursor: int | None = None  # of the next page; absent: this is the last
