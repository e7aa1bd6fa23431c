"""``subprocess.Popen`` that forks programs of ours from a zygote, and executes all others."""

from __future__ import annotations

import atexit
import inspect
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from support.forking.programs import ZYGOTE, Program, find_program, is_like, zygote_environment
from support.forking.zygote import ZygoteClient

_ORDINARY: Final[Mapping[str, object]] = {  # arguments of Popen with which a program can be forked
    "executable": None,
    "preexec_fn": None,
    "shell": False,
    "close_fds": True,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
}
_LONGEST_COMMAND: Final = 4096  # that is shown whole
_plain: Final = subprocess.Popen
_NAMES: Final = list(inspect.signature(_plain._execute_child).parameters)[1:]  # type: ignore[attr-defined]  # private


class _Zygotes:
    """The zygote of this process, started when it is first needed."""

    def __init__(self) -> None:
        self._client: ZygoteClient | None = None
        self._lock = threading.Lock()

    def use(self, client: ZygoteClient) -> None:
        self._client = client

    def client(self) -> ZygoteClient:
        with self._lock:
            if self._client is None:
                self._client = _start()
            return self._client


_zygotes: Final = _Zygotes()
_is_off: Final = ContextVar("_is_off", default=False)


class ForkingPopen(_plain):  # type: ignore[type-arg]  # of what its streams are, its caller says
    def _execute_child(self, *values: Any) -> None:
        options = dict(zip(_NAMES, values, strict=True))
        program = _find(options)
        client = None if program is None else _zygotes.client()
        environ = os.environ if options["env"] is None else options["env"]
        if program is None or client is None or not is_like(environ, client.environ):
            super()._execute_child(*values)  # type: ignore[misc]  # private
            return
        try:
            self.pid = _fork(client, program, options, environ)
            self._child_created = True
        finally:
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(options[name] for name in pipes))


def install() -> None:
    """From now on this process forks programs of ours."""
    if sys.platform == "linux" and "CHOCKSTONE_TEST_EXEC" not in os.environ:
        subprocess.Popen = ForkingPopen  # type: ignore[misc]  # that is the point


def use_zygote(client: ZygoteClient) -> None:
    """For a program that was forked itself."""
    _zygotes.use(client)
    subprocess.Popen = ForkingPopen  # type: ignore[misc]  # that is the point


@contextmanager
def executed() -> Iterator[None]:
    """Inside, programs are executed as users execute them. Their own programs, too."""
    token = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(token)


def _find(options: Mapping[str, Any]) -> Program | None:
    if _is_off.get() or any(options.get(name, value) != value for name, value in _ORDINARY.items()):
        return None
    command = options["args"]
    if not isinstance(command, Sequence) or isinstance(command, (str, bytes)):
        return None
    return find_program([os.fspath(word) for word in command])


def _fork(client: ZygoteClient, program: Program, options: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    request = {
        "module": program.module,
        "arguments": program.arguments,
        "is_safe_path": program.is_safe_path,
        "has_children": program.has_children,
        "command": [os.fspath(word) for word in options["args"]],
        "environ": dict(environ),
        "directory": os.path.abspath(options["cwd"] or os.getcwd()),
        "umask": _umask(),
        "starts_session": bool(options["start_new_session"]),
        "group": options["process_group"],
    }
    streams = [
        standard if each == -1 else each
        for standard, each in enumerate((options["p2cread"], options["c2pwrite"], options["errwrite"]))
    ]
    return client.fork(request, streams, list(options["pass_fds"]))


def _umask() -> int:
    """Without changing it for a moment, which other threads would notice."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


def _start() -> ZygoteClient:
    ours, theirs = socket.socketpair()
    environ = zygote_environment(os.environ)
    with theirs:
        process = _plain(
            [*ZYGOTE, str(theirs.fileno()), "-" * _LONGEST_COMMAND],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environ,
        )
    client = ZygoteClient(ours, environ)
    atexit.register(_end, client, process)
    return client


def _end(client: ZygoteClient, process: subprocess.Popen[bytes]) -> None:
    client.close()
    process.wait()
