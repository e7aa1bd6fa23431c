"""Kills the server, or its worker, at named points of its work. On the path of a server that test_crashes.py starts.

Python runs this file when it starts, in the server and in its worker alike. ``CRASH_PLAN`` names a
directory with ``plan``, a line per point:

    boundary when count      for instance: append before 3

and ``hits``, a line for each that was met. The plan's next point is the one to be met; the process
that comes to that boundary for the count-th time, since it is the next, dies there, before or after
it, or in the middle of it.

    append       a record of an operation or a result goes to the journal's writer
    write        the writer's bytes go to a journal's file; "torn" leaves half of them there
    acknowledge  a request's id is sent to the client
    deliver      a result is sent to the client
    compute      the worker passes over data, or steps
    reply        the server hears from the worker
    store        a result is appended to a journal
    commit       a recovery archive appears in the store
    trim         a segment of a journal, or a recovery archive, is deleted
    catalog      a transaction
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

IS_SERVER = "chockstone.cli" in sys.orig_argv and "serve" in sys.orig_argv
IS_WORKER = "chockstone.backends.worker.main" in sys.orig_argv
RECORDS = ("operation", "result")


class Plan:
    def __init__(self, directory: Path) -> None:
        self._hits = directory / "hits"
        self._points = [line.split() for line in (directory / "plan").read_text().splitlines()]
        self._counted_for = -1  # which point the count is for
        self._count = 0

    def come_to(self, boundary: str, when: str) -> None:
        if self.is_met(boundary, when):
            self.die()

    def is_met(self, boundary: str, when: str) -> bool:
        """Whether this is where to die."""
        number = self._hits.stat().st_size // 2 if self._hits.exists() else 0
        if number >= len(self._points) or [boundary, when] != self._points[number][:2]:
            return False
        if self._counted_for != number:
            self._counted_for, self._count = number, 0
        self._count += 1
        return self._count >= int(self._points[number][2])

    def die(self) -> None:
        with self._hits.open("a") as hits:
            hits.write("x\n")
            hits.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def around(
        self, owner: Any, name: str, boundary: str, concerns: Callable[..., bool] = lambda *_, **__: True
    ) -> None:
        """Die before or after calls of that function which concern the boundary."""
        function = getattr(owner, name)

        def watched(*values: Any, **facts: Any) -> Any:
            if not concerns(*values, **facts):
                return function(*values, **facts)
            self.come_to(boundary, "before")
            result = function(*values, **facts)
            self.come_to(boundary, "after")
            return result

        setattr(owner, name, watched)


def path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def watch_files(plan: Plan) -> None:
    """Journals and archives, as the system calls see them."""

    def is_recovery(path: Any, *_: Any, **__: Any) -> bool:
        return "/recovery/" in os.fspath(path)

    def is_trimmed(path: Any, *_: Any, **__: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and (str(path).endswith(".journal") or is_recovery(path))

    plan.around(os, "unlink", "trim", is_trimmed)
    plan.around(os, "remove", "trim", is_trimmed)
    plan.around(os, "link", "commit", lambda _, target, **__: is_recovery(target))
    plan.around(os, "replace", "commit", lambda _, target, **__: is_recovery(target))
    plan.around(os, "rename", "commit", lambda _, target, **__: is_recovery(target))
    for name in ("writev", "pwritev", "write", "pwrite"):
        watch_writes(plan, name)


def watch_writes(plan: Plan, name: str) -> None:
    function = getattr(os, name)

    def watched(descriptor: int, data: Any, *values: Any) -> int:
        if not path_of(descriptor).endswith(".journal"):
            return int(function(descriptor, data, *values))
        plan.come_to("write", "before")
        if plan.is_met("write", "torn"):
            whole = b"".join(data) if isinstance(data, Sequence) and not isinstance(data, bytes) else bytes(data)
            half = whole[: len(whole) // 2]
            function(descriptor, [half] if name.endswith("v") else half, *values)
            plan.die()
        written = function(descriptor, data, *values)
        plan.come_to("write", "after")
        return int(written)

    setattr(os, name, watched)


def watch_server(plan: Plan) -> None:
    from chockstone.api import app as api
    from chockstone.backends.calls import DoneEvent
    from chockstone.backends.supervision.local import LocalBackend
    from chockstone.catalog.database.database import Database
    from chockstone.engine.journal.journal import Journal

    plan.around(Journal, "append", "append", lambda _, head, *__, **___: head.get("kind") in RECORDS)
    plan.around(Journal, "append", "store", lambda _, head, *__, **___: head.get("kind") == "result")
    plan.around(LocalBackend, "_take", "reply", lambda _, event: isinstance(event, DoneEvent))
    run = Database.run

    async def watched_run(database: Database, work: Any, *, writes: bool) -> Any:
        if writes:
            plan.come_to("catalog", "before")
        result = await run(database, work, writes=writes)
        if writes:
            plan.come_to("catalog", "after")
        return result

    Database.run = watched_run  # type: ignore[method-assign]  # that is the point
    create = api.create_app

    def watched_create(*values: Any, **options: Any) -> Any:
        app = create(*values, **options)

        async def watched_app(scope: Any, receive: Any, send: Any) -> None:
            boundary = boundary_of(scope)

            async def watched_send(message: Any) -> None:
                is_end = message["type"] == "http.response.body" and not message.get("more_body")
                if boundary and message["type"] == "http.response.start" and message["status"] == 200:
                    plan.come_to(boundary, "before")
                await send(message)
                if boundary and is_end:
                    plan.come_to(boundary, "after")

            await app(scope, receive, watched_send)

        return watched_app

    api.create_app = watched_create


def boundary_of(scope: Any) -> str | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    last = scope["path"].rpartition("/")[2]
    if last == "retrieve_future":
        return "deliver"
    numbered = ("forward_backward", "forward", "optim_step", "asample", "create_model")
    return "acknowledge" if last in numbered or last.startswith(("save_weights", "load_weights")) else None


class WorkerWatch(MetaPathFinder):
    """Waits until the worker imports what computes: torch before its first line would make it another worker."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "chockstone.backends.training.run":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def watched_execute(module: Any) -> None:
            execute(module)
            for name in ("apply", "optim_step"):
                self._plan.around(module.TrainedRun, name, "compute")

        spec.loader.exec_module = watched_execute  # type: ignore[method-assign]  # of this one loader
        return spec


def watch_worker(plan: Plan) -> None:
    sys.meta_path.insert(0, WorkerWatch(plan))


if "CRASH_PLAN" in os.environ and (IS_SERVER or IS_WORKER):
    the_plan = Plan(Path(os.environ["CRASH_PLAN"]))
    watch_files(the_plan)
    (watch_server if IS_SERVER else watch_worker)(the_plan)
