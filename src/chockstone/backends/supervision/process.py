"""The worker process: its configuration, and how it is spawned.

This file imports little, so that the worker can be spawned before the rest of the server is imported.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from chockstone.backends.run_spec import ActivationCheckpointing, BasePrecision, RouterReplay
from chockstone.telemetry import tracing
from chockstone.telemetry.log_format import LogFormat, configure_logging

# -P: do not import modules from the directory that the server was started in. The last argument, which ``spawn`` adds,
# is the descriptor of a socket.
COMMAND: Final = (sys.executable, "-P", "-m", "chockstone.backends.worker.main")
PROMOTION: Final = b"\x01"  # what a spare waits for, ahead of the first message of its channel
MODEL_ENVIRONMENT: Final[Mapping[str, str]] = {  # environment variables with which models are loaded
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",  # one for each shape of a product; each takes up to 1 MB
}


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a worker process."""

    models: dict[str, str]  # name → directory
    store: str
    device: str = "auto"
    dtype: str = "auto"
    base_precision: BasePrecision = "auto"
    threads: int = 0  # 0: the number of cores
    gpu: str | None = None  # the only one that the worker sees, as in CUDA_VISIBLE_DEVICES; None: all
    max_sequences: int = 256
    prefix_cache_bytes: int = 512 << 20  # 0: prompts are not kept
    tokens_per_micro_batch: int = 0  # 0: chosen for the device
    activation_checkpointing: ActivationCheckpointing = "auto"
    router_replay: RouterReplay = "on"
    memory_check: bool = True  # whether base models and runs that cannot fit are refused
    log_level: str = "info"
    log_format: LogFormat = "text"
    otlp_endpoint: str | None = None
    trace_ratio: float | None = None
    is_spare: bool = False  # it waits for PROMOTION before it loads models


def begin_telemetry(config: WorkerConfig, *, role: str) -> None:
    """Log and trace in this process as the server does."""
    configure_logging(config.log_level, config.log_format)
    tracing.start(tracing.TracingConfig(config.otlp_endpoint, config.trace_ratio), role=role)


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    leave_seconds: float = 0.0  # how long it may take to end after the channel is closed

    def end(self) -> None:
        """Close the channel and wait for the process to end."""
        self.channel.close()
        self.wait()

    def wait(self) -> int:
        """Returns the exit code. A process that takes longer than ``leave_seconds`` is killed."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(self.leave_seconds)
        self.process.kill()
        return self.process.wait()


def spawn_worker(
    config: WorkerConfig, *, inherit: Sequence[int] = (), command: Sequence[str] = COMMAND
) -> WorkerProcess:
    """``inherit`` are descriptors that the worker keeps open. Raises OSError.

    The worker is killed when the calling thread ends.
    """
    settings = {"CHOCKSTONE_WORKER": orjson.dumps(asdict(config)).decode()}
    if config.gpu is not None:
        settings["CUDA_VISIBLE_DEVICES"] = config.gpu
    return spawn(command, environment=os.environ | MODEL_ENVIRONMENT | settings, inherit=inherit)


def spawn(
    command: Sequence[str], *, environment: Mapping[str, str], inherit: Sequence[int] = (), leave_seconds: float = 0.0
) -> WorkerProcess:
    """Spawn a process with a channel to it. Raises OSError.

    The descriptor of the channel is added to the command. Settings travel in the environment, so that they do not show
    in the command line. The process stays in the session of the caller: Linux shares the cores between sessions before
    it looks at priorities (sched_autogroup), so a process of another session cannot give way to this one.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603  # our own program
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno(), *inherit],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in the terminal is for the server to handle
                env=environment,
            )
        except OSError:
            ours.close()
            raise
    return WorkerProcess(process, ours, leave_seconds)
