"""The actor: one worker, in a process that Ray has started on some node.

Its class is known to Ray by name only, so the same Chockstone must be installed on every node. It is
told what it needs as JSON, and answers likewise.
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

log = logging.getLogger(__name__)
_NICENESS: Final = 5  # as of a local worker


class ChockstoneWorker:
    def describe(self, told: str) -> str:
        """Where it is, and what of ``paths`` it cannot see from there."""
        import ray

        context = ray.get_runtime_context()
        host = ray.util.get_node_ip_address()
        return orjson.dumps(
            {
                "node_id": context.get_node_id(),
                "host": host,
                "pid": os.getpid(),
                "version": __version__,
                "missing": [path for path in orjson.loads(told)["paths"] if not Path(path).exists()],
                "port": _free_port(host),
            }
        ).decode()

    def run(self, told: str) -> None:
        """Work until the server says stop. Raises RuntimeError, whatever was in the way."""
        try:
            _run(orjson.loads(told))
        except Exception as error:
            kind = type(error).__name__
            log.error("worker failed error=%s", error, exc_info=kind != "RankLost")  # else it was another one
            raise RuntimeError(f"{kind}: {error}") from None  # which any process can read


def _run(told: Mapping[str, Any]) -> None:
    from chockstone.backends.supervision.instruction_sets import limit_instruction_sets, report_choice
    from chockstone.backends.supervision.process import SURROUNDINGS, WorkerConfig, log_to_stderr

    os.environ.update(SURROUNDINGS)
    os.nice(_NICENESS)
    choice = limit_instruction_sets()  # of this node
    with quick_imports():  # which take a while
        import torch

        from chockstone.backends.channel import BlockingChannel
        from chockstone.backends.ray.rank_listener import knock
        from chockstone.backends.worker.service import WorkerService
        from chockstone.backends.worker.spinning import spinning_only_where_alone

    config = WorkerConfig(**told["config"])
    log_to_stderr(config.log_level)
    report_choice(choice)
    torch.set_num_threads(config.threads)
    rank, world_size = told["rank"], told["world_size"]
    server = knock(told["host"], told["port"], told["token"]) if rank == 0 else None
    with spinning_only_where_alone(config.threads):
        if world_size > 1:
            from chockstone.backends.fsdp.rank import run_rank

            run_rank(config, rank=rank, world_size=world_size, rendezvous=told["rendezvous"], server=server)
        elif server is not None:
            WorkerService(config, BlockingChannel(server), on_orphaned=_end).run()
    logging.shutdown()
    if server is not None:
        server.close()


def _end() -> None:
    os._exit(0)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as sock:
        return int(sock.getsockname()[1])
