"""The Ray actor: one rank of a worker group, in a process that Ray starts on some node.

Ray looks its class up by name, so every node needs the same version of Chockstone. Arguments and results are JSON.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone import __version__
from chockstone.backends.importing import quick_imports
from chockstone.telemetry import tracing

log = logging.getLogger(__name__)
_NICENESS: Final = 5  # the same as of a local worker


class ChockstoneWorker:
    def describe(self, request: str) -> str:
        """Where the actor runs, and which of the requested ``paths`` do not exist there."""
        import ray

        context = ray.get_runtime_context()
        host = ray.util.get_node_ip_address()
        return orjson.dumps(
            {
                "node_id": context.get_node_id(),
                "host": host,
                "pid": os.getpid(),
                "version": __version__,
                "missing": [path for path in orjson.loads(request)["paths"] if not Path(path).exists()],
                "port": _free_port(host),
            }
        ).decode()

    def run(self, settings: str) -> None:
        """Work until the server sends a stop. Raises RuntimeError for every failure."""
        try:
            _run(orjson.loads(settings))
        except Exception as error:
            kind = type(error).__name__
            log.error("worker failed error=%s", error, exc_info=kind != "RankLost")  # RankLost: another rank failed
            raise RuntimeError(f"{kind}: {error}") from None  # a class that the driver can unpickle


def _run(settings: Mapping[str, Any]) -> None:
    from chockstone.backends.supervision.instruction_sets import limit_instruction_sets, report_choice
    from chockstone.backends.supervision.process import MODEL_ENVIRONMENT, WorkerConfig, begin_telemetry

    os.environ.update(MODEL_ENVIRONMENT)
    os.nice(_NICENESS)
    choice = limit_instruction_sets()  # on this node
    with quick_imports():
        import torch

        from chockstone.backends.channel import BlockingChannel
        from chockstone.backends.ray.rank_listener import connect_to_listener
        from chockstone.backends.worker.service import WorkerService
        from chockstone.backends.worker.spinning import spinning_only_where_alone

    config = WorkerConfig(**settings["config"])
    begin_telemetry(config, role="worker")
    report_choice(choice)
    torch.set_num_threads(config.threads)
    rank, world_size = settings["rank"], settings["world_size"]
    server = connect_to_listener(settings["host"], settings["port"], settings["token"]) if rank == 0 else None
    with spinning_only_where_alone(config.threads):
        if world_size > 1:
            from chockstone.backends.fsdp.rank import run_rank

            run_rank(config, rank=rank, world_size=world_size, rendezvous=settings["rendezvous"], server=server)
        elif server is not None:
            WorkerService(config, BlockingChannel(server), on_orphaned=_end).run()
    tracing.stop()
    logging.shutdown()
    if server is not None:
        server.close()


def _end() -> None:
    os._exit(0)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as sock:
        return int(sock.getsockname()[1])
