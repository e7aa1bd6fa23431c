"""The worker's process: what it is told, and how it is spawned.

Light to import: it can be on its way before the rest of the server is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import orjson

# -P: modules that happen to lie where the server was started are none of its business. Its last argument is a
# socket's number.
COMMAND: Final = (sys.executable, "-P", "-m", "chockstone.backends.worker")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What the worker process is told when it starts."""

    models: dict[str, str]  # name → directory
    store: str
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 0  # 0: as many as there are cores
    max_sequences: int = 256
    tokens_per_micro_batch: int = 0  # 0: what suits the device
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    process: subprocess.Popen[bytes]
    channel: socket.socket  # to it

    def end(self) -> None:
        """At once, if it has not ended yet."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


def spawn_worker(
    config: WorkerConfig, *, inherit: Sequence[int] = (), command: Sequence[str] = COMMAND
) -> WorkerProcess:
    """``inherit`` are descriptors that stay open for as long as it lives. Raises OSError.

    It dies with the thread that calls this.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603  # this very program
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno(), *inherit],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is the server's to handle
                env=_environment(config),
            )
        except OSError:
            ours.close()
            raise
    return WorkerProcess(process, ours)


def _environment(config: WorkerConfig) -> dict[str, str]:
    """Settings travel in the environment, so that the command line shows none of them."""
    return os.environ | {
        "CHOCKSTONE_WORKER": orjson.dumps(asdict(config)).decode(),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
