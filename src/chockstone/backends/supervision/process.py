"""The worker's process: what it is told, and how it is spawned.

Light to import: it can be on its way before the rest of the server is.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import orjson

# -P: modules that happen to lie where the server was started are none of its business. Its last argument is a
# socket's number.
COMMAND: Final = (sys.executable, "-P", "-m", "chockstone.backends.worker.main")
SURROUNDINGS: Final[Mapping[str, str]] = {  # in which models are loaded
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
_TALKATIVE: Final = (
    *("botocore", "boto3", "urllib3"),  # whose debug lines hold credentials and signed URLs
    "alembic.runtime.plugins",
)


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


def log_to_stderr(level: str) -> None:
    """How this process logs, the server or its worker."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    process: subprocess.Popen[bytes]
    channel: socket.socket  # to it
    leave_seconds: float = 0.0  # to end by itself when the channel is closed

    def end(self) -> None:
        """At once, if it has not ended yet."""
        self.channel.close()
        self.wait()

    def wait(self) -> int:
        """Its exit code, once it has left; it is killed if that takes too long."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(self.leave_seconds)
        self.process.kill()
        return self.process.wait()


def spawn_worker(
    config: WorkerConfig, *, inherit: Sequence[int] = (), command: Sequence[str] = COMMAND
) -> WorkerProcess:
    """``inherit`` are descriptors that stay open for as long as it lives. Raises OSError.

    It dies with the thread that calls this.
    """
    settings = {"CHOCKSTONE_WORKER": orjson.dumps(asdict(config)).decode()}
    return spawn(command, environment=os.environ | SURROUNDINGS | settings, inherit=inherit)


def spawn(
    command: Sequence[str], *, environment: Mapping[str, str], inherit: Sequence[int] = (), leave_seconds: float = 0.0
) -> WorkerProcess:
    """A process with a channel to it, whose number is added to the command. Raises OSError.

    Settings travel in the environment, so that the command line shows none of them.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603  # this very program
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno(), *inherit],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is the server's to handle
                env=environment,
            )
        except OSError:
            ours.close()
            raise
    return WorkerProcess(process, ours, leave_seconds)
