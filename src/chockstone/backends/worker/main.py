"""The worker process: holds the models. It ends when the server that started it ends.

A restarted server must not find an old worker that still writes to the same store. A worker may be killed at any
moment: an archive is either committed or not visible. A spare worker imports everything, and loads the models when the
server promotes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from typing import Final

from chockstone.backends.importing import hidden_packages, quick_imports
from chockstone.backends.supervision.instruction_sets import limit_instruction_sets, report_choice
from chockstone.backends.supervision.thread_choice import choose_threads_here, report_threads
from chockstone.telemetry import tracing

_NICENESS: Final = 5  # so that the API process gets a core first
_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    _die_with_server(sock)
    os.nice(_NICENESS)
    choice = limit_instruction_sets()
    with quick_imports(), hidden_packages("scipy", "accelerate"):
        import orjson
        import torch

        from chockstone.backends.channel import BlockingChannel
        from chockstone.backends.supervision.process import WorkerConfig, begin_telemetry
        from chockstone.backends.worker.promotion import wait_for_promotion
        from chockstone.backends.worker.service import WorkerService
        from chockstone.backends.worker.spinning import spinning_only_where_alone

    config = WorkerConfig(**orjson.loads(os.environ.pop("CHOCKSTONE_WORKER")))
    if config.is_spare and not wait_for_promotion(sock, config.models.values()):
        _end()
    begin_telemetry(config, role="worker")
    report_choice(choice)
    threads = choose_threads_here(config.threads)
    if threads.must_be_set:
        torch.set_num_threads(threads.threads)
    if not config.threads:
        report_threads(torch.get_num_threads(), threads)
    with spinning_only_where_alone(torch.get_num_threads()):
        WorkerService(config, BlockingChannel(sock), on_orphaned=_end).run()
    tracing.stop()
    logging.shutdown()
    _end()  # everything is written; an orderly exit of torch only takes time


def _die_with_server(sock: socket.socket) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(BlockingIOError):
        if not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            _end()  # the server died before prctl was called


def _end() -> None:
    os._exit(0)


if __name__ == "__main__":
    main()
