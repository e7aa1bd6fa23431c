"""One process of a process group under test: runs the jobs that it reads from stdin, one line of JSON each."""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist

warnings.simplefilter("error")


def main() -> None:
    rank, size, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size)
    from support.backends.fsdp import jobs

    known = dict(inspect.getmembers(jobs, inspect.isfunction))
    for line in sys.stdin:
        name, values = json.loads(line)
        try:
            answer = {"value": known[name](**values)}
        except BaseException:  # told to the test
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # the others may be gone already, which the group need not notice


if __name__ == "__main__":
    main()
