"""Give a Flyte 2 task our checkpoint instead of Flyte's.

Flyte has no hook for that. These functions use two private parts of it: the cache in which a task's context keeps its
checkpoint, and the class of the checkpoint. They first compare both with the known versions. If they differ, nothing is
switched and ``FlyteSdkChanged`` is raised.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast, overload

if TYPE_CHECKING:
    from flyte.models import TaskContext

    from chockstone.integrations.flyte2.checkpointer import Flyte2Checkpoint

P = ParamSpec("P")
R = TypeVar("R")

AUTO: Final = "CHOCKSTONE_FLYTE_AUTO"
_CACHE_KEY: Final = "__flyte_sync_checkpoint__"
_PARAMETERS: Final = ("self", "checkpoint_dest", "checkpoint_src")
_METHODS: Final = ("load", "save", "load_sync", "save_sync", "prev_exists")


class FlyteSdkChanged(RuntimeError):
    """This version of flyte makes its checkpoints in a way that we do not support."""


def checkpoint(**options: Any) -> Flyte2Checkpoint | None:  # Any: as Checkpoint takes them
    """Return our checkpoint for the running task; ``flyte.ctx().checkpoint`` is the same object from now on.

    Returns None if flyte has none either: outside of a task, and if the platform gives no place. ``options`` are those
    of ``Flyte2Checkpoint``; only the first call in a task uses them.
    """
    import flyte

    _check_host()
    return _seed(flyte.ctx(), options)


@overload
def resumable(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def resumable(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def resumable(function: Callable[P, R] | None = None, /, **options: Any) -> Any:  # Any: as Checkpoint takes them
    """Below ``@env.task``, for sync and async functions: ``flyte.ctx().checkpoint`` in the task is ours.

        @env.task(retries=5)
        @resumable
        async def train() -> int: ...

    ``options`` are those of ``Flyte2Checkpoint``. Called outside of a task the function is as it was.
    """
    if function is None:
        return functools.partial(_resumable, options)
    return _resumable(options, function)


def _resumable(options: dict[str, Any], function: Callable[P, R]) -> Callable[P, R]:
    _check_host()
    if hasattr(function, "native_interface"):
        raise TypeError(f"@resumable stands below @env.task, not above it: {getattr(function, 'name', function)!r}")
    if inspect.iscoroutinefunction(function):
        waiting = cast("Callable[P, Awaitable[Any]]", function)

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:  # Any: what the function returns
            checkpoint(**options)
            return await waiting(*args, **kwargs)

        return cast("Callable[P, R]", run_async)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        checkpoint(**options)
        return function(*args, **kwargs)

    return run


def install() -> None:
    """Replace flyte's checkpoint class in this process."""
    import flyte
    import flyte._checkpoint

    from chockstone.integrations.flyte2.checkpointer import Flyte2Checkpoint

    _check_host()
    flyte._checkpoint.Checkpoint = flyte.Checkpoint = Flyte2Checkpoint  # type: ignore[misc]  # which is the point


def install_if_asked() -> None:
    """The entry point that ``flyte.init`` calls. Does nothing unless CHOCKSTONE_FLYTE_AUTO is 1.

    Flyte only logs errors of its entry points, and would continue with its own class. So after an error here, the
    task's use of its checkpoint raises it again.
    """
    if os.environ.get(AUTO) != "1":
        return
    try:
        install()
    except Exception as error:
        _refuse(error)
        raise


def _refuse(error: Exception) -> None:
    import flyte
    import flyte._checkpoint

    class Refusing(flyte._checkpoint.BaseCheckpoint):
        def __new__(cls, *_: object, **__: object) -> Any:  # Any: there is never one
            raise FlyteSdkChanged(f"{AUTO}=1, but flyte's checkpoint could not be switched: {error}") from error

    flyte._checkpoint.Checkpoint = flyte.Checkpoint = Refusing  # type: ignore[misc]  # as above


def _seed(context: TaskContext, options: dict[str, Any]) -> Flyte2Checkpoint | None:
    from chockstone.integrations.flyte2.checkpointer import Flyte2Checkpoint
    from chockstone.integrations.flyte2.task_context import identity_of

    paths = context.checkpoint_paths
    dest = (paths.checkpoint_path or "").strip() if paths is not None else ""
    if paths is None or not dest:
        return None
    made = context.data.get(_CACHE_KEY)
    if not isinstance(made, Flyte2Checkpoint):
        made = Flyte2Checkpoint(dest, paths.prev_checkpoint_path, identity=identity_of(context), **options)
        context.data[_CACHE_KEY] = made
    return made


@functools.cache
def _check_host() -> None:
    """Raise FlyteSdkChanged unless flyte's private parts are as expected."""
    try:
        import flyte
        from flyte import _checkpoint
        from flyte.models import CheckpointPaths, TaskContext
    except ImportError as error:
        raise FlyteSdkChanged(_advice(f"{error.name or error} cannot be imported")) from error
    native = _native_class(_checkpoint)
    if native is None:
        raise FlyteSdkChanged(_advice("flyte._checkpoint.Checkpoint is gone"))
    if getattr(_checkpoint, "CHECKPOINT_CACHE_KEY", None) != _CACHE_KEY:
        raise FlyteSdkChanged(_advice("a context keeps its checkpoint under another name"))
    found = tuple(inspect.signature(native.__init__).parameters)
    if found != _PARAMETERS:
        raise FlyteSdkChanged(_advice(f"flyte.Checkpoint takes {found} and not {_PARAMETERS}"))
    if missing := [name for name in _METHODS if not callable(getattr(native, name, None))]:
        raise FlyteSdkChanged(_advice(f"flyte.Checkpoint has no {', '.join(missing)}"))
    if not isinstance(getattr(TaskContext, "checkpoint", None), property) or not callable(getattr(flyte, "ctx", None)):
        raise FlyteSdkChanged(_advice("a task has no flyte.ctx().checkpoint"))
    if not {"prev_checkpoint_path", "checkpoint_path"} <= set(CheckpointPaths.__dataclass_fields__):
        raise FlyteSdkChanged(_advice("the platform's paths have other names"))


def _native_class(module: Any) -> Any:  # Any: a class, if flyte has not changed
    """Return flyte's own class, also after ``install``."""
    found = getattr(module, "Checkpoint", None)
    if isinstance(found, type) and found.__module__.startswith("chockstone."):
        return next((base for base in found.__mro__ if base.__module__ == module.__name__), None)
    return found


def _advice(what: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("flyte")
    except PackageNotFoundError:
        installed = "that is not installed"
    return (
        f"chockstone does not know the checkpoints of flyte {installed}: {what}. Nothing was switched; install "
        "'chockstone[flyte2]' in a newer version, or flyte 2.12, or take the decorator away"
    )
