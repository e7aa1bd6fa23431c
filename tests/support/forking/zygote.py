"""A zygote: a process that has imported the programs, and forks one for each request that it is sent.

Run as a script it is the zygote of the test process. A forked server has a zygote of its own, forked before the server
has threads, for its workers: the parent of a program must be who asked for it. So whoever asks is a subreaper for a
moment. The zygote forks twice and lets the first child end, by which the second becomes a child of who asked.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

_SUBREAPER, _DEATH_SIGNAL, _NAME = 36, 1, 15  # of prctl
_COMM: Final = b"test-zygote"
_LIMITS: Final = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
_HEAD: Final = struct.Struct("<I")
_MOST_DESCRIPTORS: Final = 64
_libc: Final = ctypes.CDLL(None)


def is_zygote(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().strip() == _COMM
    except OSError:
        return False


class ZygoteClient:
    """Of one process, whose threads may ask at the same time."""

    def __init__(self, sock: socket.socket, environ: Mapping[str, str]) -> None:
        """``environ``: in which the zygote imported the programs."""
        self.environ = dict(environ)
        self._sock = sock
        self._lock = threading.Lock()

    def fork(self, request: Mapping[str, Any], streams: Sequence[int], passed: Sequence[int]) -> int:
        """The process id of a new child of this process. ``passed`` are open in it under the same numbers."""
        limits = [resource.getrlimit(limit) for limit in _LIMITS]
        text = json.dumps({**request, "limits": limits, "passed": list(passed)}).encode()
        with self._lock:
            _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._sock, [_HEAD.pack(len(text))], [*streams, *passed])
                self._sock.sendall(text)
                answer = self._sock.recv(_HEAD.size, socket.MSG_WAITALL)
            finally:
                _libc.prctl(_SUBREAPER, 0, 0, 0, 0)
        if len(answer) < _HEAD.size:
            raise OSError("the zygote has ended")
        return int(_HEAD.unpack(answer)[0])

    def close(self) -> None:
        self._sock.close()


class Zygote:
    def __init__(self, environ: Mapping[str, str], path: Sequence[str]) -> None:
        """``path``: on which every program looks for modules, after its working directory."""
        self._environ = environ
        self._path = list(path)

    def serve(self, sock: socket.socket) -> str:
        """Fork programs until the other end is closed. Returns only in a program: the module or script to run."""
        _libc.prctl(_NAME, _COMM, 0, 0, 0)
        while True:
            head, descriptors, _, _ = socket.recv_fds(sock, _HEAD.size, _MOST_DESCRIPTORS)
            if not head:
                os._exit(0)
            text = sock.recv(_HEAD.unpack(head)[0], socket.MSG_WAITALL)
            reading, writing = os.pipe()
            between = os.fork()
            if between == 0:
                middle = os.getpid()
                if pid := os.fork():
                    os.write(writing, _HEAD.pack(pid))
                    os._exit(0)
                while os.getppid() == middle:
                    time.sleep(0.0002)
                sock.detach()  # else its end would close what the program has under that number
                return self._become(json.loads(text), descriptors)
            os.waitpid(between, 0)  # the program is now a child of who asked
            sock.sendall(os.read(reading, _HEAD.size))
            for descriptor in (reading, writing, *descriptors):
                os.close(descriptor)

    def _become(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> str:
        """Set what exec sets. Returns the module to run."""
        _libc.prctl(_NAME, b"python", 0, 0, 0)
        if request["starts_session"]:
            os.setsid()
        if request["group"] >= 0:
            os.setpgid(0, request["group"])
        os.chdir(request["directory"])
        os.umask(request["umask"])
        for limit, values in zip(_LIMITS, request["limits"], strict=True):
            resource.setrlimit(limit, values)
        _place_descriptors(descriptors, [0, 1, 2, *request["passed"]])
        _open_streams()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["environ"])
        time.tzset()
        sys.orig_argv = request["command"]
        _show_command(request["command"])
        sys.argv = ["-m", *request["arguments"]]
        module: str = request["module"]
        own = os.path.dirname(module) if os.path.isabs(module) else os.getcwd()
        sys.path[:] = self._path if request["is_safe_path"] else [own, *self._path]
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # the generator of ``random`` seeds itself after a fork
        return self._divide() or module if request["has_children"] else module

    def _divide(self) -> str | None:
        """Fork a zygote for the programs that this program starts. Returns None in this program, the module to run in
        those."""
        from support.forking.popen import use_zygote

        ours, theirs = socket.socketpair()
        program = os.getpid()
        if os.fork():
            theirs.close()
            use_zygote(ZygoteClient(ours, self._environ))
            return None
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _show_command([_COMM.decode()])  # tests find programs by their command lines
        _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != program:
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        _place_descriptors([nothing, nothing, nothing, theirs.fileno()], [0, 1, 2, theirs.fileno()])
        return self.serve(theirs)


def _place_descriptors(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Have each of ``descriptors`` under its number, and nothing else open."""
    above = max(*numbers, *descriptors) + 1
    moved = [os.dup2(each, above + place) for place, each in enumerate(descriptors)]
    for each, number in zip(moved, numbers, strict=True):
        os.dup2(each, number)
    _close_all_but(numbers)


def _open_streams() -> None:
    """The zygote's own were opened on something else."""
    for number, (name, mode, buffering) in enumerate((("stdin", "r", -1), ("stdout", "w", -1), ("stderr", "w", 1))):
        before = getattr(sys, name)
        stream = open(  # noqa: SIM115  # as long as the process
            number, mode, buffering=buffering, encoding=before.encoding, errors=before.errors, closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show_command(command: Sequence[str]) -> None:
    """Have ``ps`` and ``/proc`` show it, in the place of the zygote's own, which has an argument to be written over."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(os.fsencode(word) for word in command)[: end - start - 2]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _close_all_but(numbers: Collection[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in numbers:
            with suppress(OSError):  # the directory that was listed
                os.close(number)


def main() -> None:
    """Arguments: the descriptor of the socket, and a long one."""
    path = sys.path[1:]
    sys.path[0] = str(Path(__file__).parents[2])
    from support.forking import programs
    from support.forking.ending import run_and_end
    from support.forking.zygote import Zygote  # of the package, whose ``popen`` the programs use

    environ = dict(os.environ)
    programs.import_programs()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until a program runs: Python loses those during a fork
    module = Zygote(environ, path).serve(socket.socket(fileno=int(sys.argv[1])))
    warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)  # on purpose
    run_and_end(partial(_run, module))


def _run(module: str) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if os.path.isabs(module):
        sys.argv[0] = module
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
