"""Give a task our checkpoint instead of flytekit's: by a decorator, by a call, or for all tasks of a process."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar, overload

import flytekit
from flytekit.core import checkpointer, context_manager
from flytekit.core.base_task import Task
from flytekit.core.context_manager import ExecutionParameters, FlyteContextManager

from chockstone.integrations.flyte.checkpointer import FlyteCheckpoint, Options
from chockstone.integrations.flyte.errors import FlytekitChanged

P = ParamSpec("P")
R = TypeVar("R")
_OURS: Final = "_chockstone"  # attribute of flytekit's checkpoint: the one that replaces it
_ENTRYPOINT: Final = "flytekit.bin.entrypoint"
_lock = threading.Lock()


@overload
def resumable(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def resumable(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...  # Any: those of Options
def resumable(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Decorate the function of a task, below ``@task``: ``current_context().checkpoint`` is then ours.

    Use it with or without arguments, which are those of ``Options``.
    """
    check_host()
    chosen = Options(**options)
    if function is None:
        return lambda decorated: _wrapped(decorated, chosen)
    return _wrapped(function, chosen)


def checkpoint(**options: Any) -> FlyteCheckpoint:  # Any: those of Options
    """Return the checkpoint of the running task. Every call in a task returns the same object."""
    check_host()
    params = FlyteContextManager.current_context().user_space_params
    if params is None:
        raise FlytekitChanged("there is no task here whose checkpoint this could be: call checkpoint() inside of one")
    return _adopted(params.checkpoint, Options(**options))


def install() -> None:
    """Replace flytekit's class for all tasks of this process. Idempotent."""
    check_host()
    holders = [checkpointer, context_manager, sys.modules.get(_ENTRYPOINT)]
    for holder in holders:
        if holder is None:
            continue
        if not hasattr(holder, "SyncCheckpoint"):
            raise _changed(f"{holder.__name__} has no SyncCheckpoint any more")
        holder.SyncCheckpoint = FlyteCheckpoint


def check_host() -> None:
    """Raise FlytekitChanged if this flytekit constructs its checkpoint in a way that we do not support."""
    found = inspect.signature(vars(_native_class())["__init__"])
    parameters = [(each.name, each.default is each.empty, each.kind) for each in found.parameters.values()]
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    known = [("self", True, either), ("checkpoint_dest", True, either), ("checkpoint_src", False, either)]
    if parameters != known:
        raise _changed(f"it makes its checkpoint with {found}")
    for name in ("builder", "checkpoint"):
        if not hasattr(ExecutionParameters, name):
            raise _changed(f"ExecutionParameters has no {name!r}")


def _native_class() -> type:
    """Return flytekit's own class, also after ``install``."""
    native: type = FlyteCheckpoint.__bases__[0]
    return native


def _changed(what: str) -> FlytekitChanged:
    version = getattr(flytekit, "__version__", "?")
    return FlytekitChanged(
        f"flytekit {version} is not one that this version of chockstone can resume for: {what}. Install "
        "'flytekit>=1.14,<2' or a newer chockstone; without @resumable, checkpoint() and CHOCKSTONE_FLYTE_AUTO the "
        "task runs with flytekit's own checkpoint"
    )


def _wrapped(function: Callable[P, R], options: Options) -> Callable[P, R]:
    if isinstance(function, Task):
        raise TypeError("@resumable stands below @task, next to the function: swap the two lines")
    if not callable(function):
        raise TypeError(f"@resumable decorates the function of a task, and not {function!r}")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waiting(*args: P.args, **kwargs: P.kwargs) -> Any:  # Any: what the function returns
            with _switched(options):
                return await function(*args, **kwargs)

        return waiting  # type: ignore[return-value]  # R is a coroutine

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with _switched(options):
            return function(*args, **kwargs)

    return wrapper


@contextmanager
def _switched(options: Options) -> Iterator[None]:
    """Push a context whose checkpoint is ours. Does nothing if the platform gave no checkpoint."""
    context = FlyteContextManager.current_context()
    params = context.user_space_params
    if params is None or params._checkpoint is None:
        yield
        return
    ours = _adopted(params._checkpoint, options)
    builder = params.builder()
    builder.checkpoint = ours
    state = context.execution_state.with_params(user_space_params=builder.build())
    with FlyteContextManager.with_context(context.with_execution_state(state)):
        try:
            yield
        finally:
            ours.close()


def _adopted(theirs: Any, options: Options) -> FlyteCheckpoint:  # Any: flytekit's, which has no types
    """Return our checkpoint for flytekit's. There is one for each: two would take the place from each other."""
    with _lock:
        ours = theirs if isinstance(theirs, FlyteCheckpoint) else getattr(theirs, _OURS, None)
        if isinstance(ours, FlyteCheckpoint):
            if options != Options():
                ours.configure(options)
            return ours
        if not issubclass(type(theirs), _native_class()):
            raise _changed(f"the checkpoint of this task is a {type(theirs).__name__}")
        made = FlyteCheckpoint(theirs._checkpoint_dest, theirs._checkpoint_src, options=options)
        setattr(theirs, _OURS, made)
        return made
