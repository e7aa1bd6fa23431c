"""Surroundings: what Flyte 2 knows about this task and its storage, in our words. Sends no request."""

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
    """Whose checkpoints these are: the same for all attempts of an action, and for nothing else.

    Empty outside of a task, where nobody can tell.
    """
    action = context.task_action or context.action  # a trace has an action of its own
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
    """Of a process of a clustered task; 0 for a task that is one process."""
    text = environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def is_restarted(environ: Mapping[str, str]) -> bool:
    """Whether the pods of this very attempt were made anew, so that its own place may hold something."""
    text = environ.get("JOBSET_RESTART_ATTEMPT", "")
    return text.isdecimal() and int(text) > 0


def s3_access() -> S3Access | None:
    """Endpoint and keys as flyte itself would take them: from ``flyte.init(storage=…)``, else from FLYTE_AWS_….

    None where it would leave them to the AWS environment.
    """
    from flyte._initialize import get_storage  # there is no public way to ask

    try:
        configured = get_storage()
    except InitializationError:
        configured = None
    storage = configured if isinstance(configured, S3) else S3.auto()
    access = S3Access(
        endpoint_url=storage.endpoint or os.environ.get("AWS_ENDPOINT"),  # which obstore knows and boto3 does not
        key_id=storage.access_key_id,
        secret=storage.secret_access_key,
        region=storage.region,
    )
    return None if access == S3Access() else access


def place_of(uri: str | os.PathLike[str]) -> str:
    """The same place in our words: flyte takes what follows ``file://`` as it stands, and Azure goes by abfs."""
    text = os.fspath(uri).strip().strip('"')
    if text.startswith("file://"):
        return text.removeprefix("file://")
    for scheme in ("abfss://", "abfs://"):
        if text.startswith(scheme):
            return f"az://{text.removeprefix(scheme)}"
    return text
