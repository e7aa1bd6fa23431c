"""Read the identity, rank and storage settings of a Flyte 2 task from its context and environment. Does no I/O."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flyte.errors import InitializationError
from flyte.storage import S3

from chockstone.checkpoints.stores.bucket import S3Access

if TYPE_CHECKING:
    from flyte.models import TaskContext


def identity_of(context: TaskContext) -> dict[str, str]:
    """Return the identity of a chain: the same for all attempts of an action, and different for other actions.

    Empty outside of a task.
    """
    action = context.task_action or context.action  # ``action`` of a trace is that of the trace
    if action is None:
        return {}
    facts = {
        "org": action.org,
        "project": action.project,
        "domain": action.domain,
        "run": action.run_name,
        "action": action.name,
    }
    return {name: value for name, value in facts.items() if value}


def rank_of(environ: Mapping[str, str]) -> int:
    """Return the rank in a clustered task; 0 for a task with one process."""
    text = environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def is_restarted(environ: Mapping[str, str]) -> bool:
    """Whether the pods of this attempt were restarted, so that its own place may hold a checkpoint."""
    text = environ.get("JOBSET_RESTART_ATTEMPT", "")
    return text.isdecimal() and int(text) > 0


def s3_access() -> S3Access | None:
    """Return endpoint and keys that flyte would use: from ``flyte.init(storage=…)``, else from FLYTE_AWS_….

    None if flyte would leave them to the AWS environment.
    """
    from flyte._initialize import get_storage  # flyte has no public function for it

    try:
        configured = get_storage()
    except InitializationError:
        configured = None
    storage = configured if isinstance(configured, S3) else S3.auto()
    access = S3Access(
        endpoint_url=storage.endpoint or os.environ.get("AWS_ENDPOINT"),  # obstore reads it and boto3 does not
        key_id=storage.access_key_id,
        secret=storage.secret_access_key,
        region=storage.region,
    )
    return None if access == S3Access() else access


def place_of(uri: str | os.PathLike[str]) -> str:
    """Translate a path of flyte: it does not decode ``file://`` URLs, and writes Azure as ``abfs://``."""
    text = os.fspath(uri).strip().strip('"')
    if text.startswith("file://"):
        return text.removeprefix("file://")
    for scheme in ("abfss://", "abfs://"):
        if text.startswith(scheme):
            return f"az://{text.removeprefix(scheme)}"
    return text
