"""A training loop that resumes after a kill at any time.

Run it: `python examples/resume.py ./run-7`, kill it, run it again. The root may also be `s3://bucket/run-7`, and
several processes may train together: `torchrun --nproc-per-node 2 --max-restarts 3 examples/resume.py ./run-7`.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
import time
from typing import Any

import torch
from torch import distributed

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import ResumeBlocked, ResumeError


def batch(step: int, rank: int) -> torch.Tensor:
    """The batch of a step. It depends on step and rank alone, so a resumed run gets the same batch."""
    return torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step + rank))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", help="place of the attempts of this run: a directory or an s3:// address")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # one line reports what Resume found
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")  # before Resume: the ranks agree through it

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    trained = torch.nn.parallel.DistributedDataParallel(model) if distributed.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}

    try:
        with Resume.from_environment(arguments.root) as resume:
            receipt = resume.restore(state)
            start = resume.step or 0
            print(f"resumed after step {start}" if receipt else "a fresh start", flush=True)
            for step in range(start + 1, arguments.steps + 1):
                words = batch(step, rank)
                loss = (trained(words) - words.flip(1)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(arguments.pause)
                print(f"step {step} loss {loss.item():.4f}", flush=True)
                if resume.leads and (step % arguments.save_every == 0 or step == arguments.steps):
                    resume.save(state, step=step)  # written in the background
    except ResumeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        is_temporary = isinstance(error, ResumeBlocked) and error.verdict in ("unreachable", "local")
        raise SystemExit(1 if is_temporary else 42) from None  # 42: a restart does not help

    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters()))
    print(f"done: {digest.hexdigest()[:16]}")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
