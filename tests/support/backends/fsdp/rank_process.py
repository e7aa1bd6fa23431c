"""One rank in a process of its own. Arguments: rank, size, rendezvous, the server's socket or -1, configuration."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import warnings

import torch

from chockstone.backends.fsdp.rank import RankLost, run_rank
from chockstone.backends.supervision.process import WorkerConfig


def main() -> int:
    rank, size, rendezvous, number, config = sys.argv[1:]
    warnings.simplefilter("error")
    logging.basicConfig(level="INFO")
    torch.set_num_threads(1)
    server = socket.socket(fileno=int(number)) if int(number) >= 0 else None
    try:
        run_rank(
            WorkerConfig(**json.loads(config)),
            rank=int(rank),
            world_size=int(size),
            rendezvous=rendezvous,
            server=server,
            timeout_seconds=60,
        )
    except RankLost as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
