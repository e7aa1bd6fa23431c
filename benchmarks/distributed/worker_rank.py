"""One rank of our backend's worker group, as a Ray actor runs it.

Usage: ``worker_rank.py RANK SIZE RENDEZVOUS SOCKET CONFIGURATION``.
"""

from __future__ import annotations

import json
import os
import socket
import sys

import torch

from chockstone.backends.fsdp.rank import run_rank
from chockstone.backends.supervision.process import WorkerConfig


def main() -> None:
    rank, size, rendezvous, number, config = sys.argv[1:]
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(size)))
    run_rank(
        WorkerConfig(**json.loads(config)),
        rank=int(rank),
        world_size=int(size),
        rendezvous=rendezvous,
        server=socket.socket(fileno=int(number)) if int(rank) == 0 else None,
    )


if __name__ == "__main__":
    main()
