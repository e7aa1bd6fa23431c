"""Peers: servers and libraries that are installed elsewhere, named by environment variables.

BENCH_VLLM_PYTHON          Python of an environment with vLLM for CPUs.
BENCH_TINKER_SERVER        Command that starts another server with the Tinker API, such as SkyRL's.
BENCH_TINKER_PYTHON        Python of an environment with the SDK that goes with that server (default: this Python).
BENCH_TRANSFORMERS_SERVE   Command that starts ``transformers serve``.

A command runs in the foreground. ``{model}`` in it stands for the model's directory, ``{port}`` for the port on
127.0.0.1, ``{home}`` for a new directory, in which it runs. A peer that is not named, or does not start, is listed as
not run.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from types import MappingProxyType
from typing import Final, TypeVar

import psutil  # type: ignore[import-untyped]  # has no stubs of its own

from benchmarks.harness.rounds import reason_of
from benchmarks.live.models import Model

VLLM_PYTHON = "BENCH_VLLM_PYTHON"
TINKER_SERVER = "BENCH_TINKER_SERVER"
TINKER_PYTHON = "BENCH_TINKER_PYTHON"
TRANSFORMERS_SERVE = "BENCH_TRANSFORMERS_SERVE"
VLLM_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB; by default nine tenths of all memory
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default one core does no arithmetic
        "VLLM_NO_USAGE_STATS": "1",
    }
)
_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 20.0

Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class PeerServer:
    url: str
    process: psutil.Process


def open_named(openers: Mapping[str, tuple[str, Callable[[str], Opened]]]) -> tuple[dict[str, Opened], dict[str, str]]:
    """Open the peers that are named. Returns them, and why each other one does not run.

    ``openers``: of each peer its environment variable, and what opens the peer, given the value of the variable.
    """
    opened: dict[str, Opened] = {}
    absent: dict[str, str] = {}
    for peer, (variable, open_peer) in openers.items():
        if not (value := os.environ.get(variable)):
            absent[peer] = f"{variable} is not set"
            continue
        try:
            opened[peer] = open_peer(value)
        except Exception as error:  # recorded: reported as "not run" with its reason
            absent[peer] = reason_of(error)
    return opened, absent


@contextmanager
def peer_server(
    command: str, model: Model, home: Path, *, threads: int, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[PeerServer]:
    """The server of a command, from when its port answers. It ends with all that it started.

    ``variables`` are added to the environment.
    """
    home.mkdir(parents=True)
    port = _free_port()
    program, *words = [word.format(model=model.directory, port=port, home=home) for word in shlex.split(command)]
    if os.sep in program:
        program = os.path.abspath(program)  # as seen from here, not from ``home``
    environment = {
        **os.environ,
        **variables,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(home),
    }
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env=environment,
            start_new_session=True,
        )
    try:
        _wait_for_port(port, process, home / "log")
        yield PeerServer(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
    finally:
        _end(process)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    lines = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
    raise RuntimeError(f"the server did not start; it said last: {lines[-1]}\n" + "\n".join(lines[-30:]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: they are in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)
    process.wait()
