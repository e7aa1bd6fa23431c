"""Tasks that count to six, saving each step, and die where the environment says. Imported by pyflyte-execute."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flytekit import current_context, task

from chockstone.integrations.flyte import checkpoint, resumable


def count() -> int:
    """Where it started. Dies right after the save of the step that DIE_AT names; before anything for 'start'."""
    die_at = os.environ.get("DIE_AT")
    if die_at == "start":
        os.kill(os.getpid(), signal.SIGKILL)
    saved = current_context().checkpoint
    start = int((saved.read() or b"0") if saved.prev_exists() else b"0")
    Path(os.environ["TOLD"]).write_text(f"{type(saved).__module__} {start}")
    for step in range(start + 1, 7):
        saved.write(str(step).encode())
        if die_at == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
    return start


@task
@resumable
def decorated() -> int:
    return count()


@task
def untouched() -> int:
    return count()


@task
def helped() -> int:
    saved = checkpoint()
    assert saved is checkpoint()
    return int((saved.read() or b"0") if saved.prev_exists() else b"0")


@task
@resumable(forward="off")
def mapped(index: int) -> int:
    return count() + index * 100


@task
def mapped_untouched(index: int) -> int:
    return count() + index * 100
