"""Train a sharded model with FSDP2: all ranks save into one file, and any number of ranks resumes from it.

Run it: `torchrun --nproc-per-node 2 examples/fsdp_torchrun.py ./fsdp-run`. Stop it with Ctrl-C or kill it, and start it
again with another number of processes: it resumes from the last checkpoint, with the same weights. The root may
also be `s3://bucket/fsdp-run`. On several hosts, use a directory that all hosts see.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from chockstone.checkpoints import Checkpointer, Retention

WIDTH, BLOCKS, BATCH = 130, 4, 24  # a batch that 1, 2, 3 and 4 processes divide evenly


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks)


def batch(step: int, rank: int, world_size: int, device: torch.device) -> torch.Tensor:
    """This rank's part of the batch. The whole batch depends on the step alone, not on the number of ranks."""
    words = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
    return words.tensor_split(world_size)[rank].to(device)


def fingerprint(model: nn.Module) -> str:
    """A digest of the whole weights. All ranks must call it. It gathers the weights, so it suits small models only."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        digest.update(parameter.full_tensor().detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", help="place of the checkpoints: a directory or an s3:// address")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    arguments = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo")  # before Checkpointer, which uses it
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    device = torch.device(kind, rank % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    mesh = init_device_mesh(kind, (world_size,))
    model = make_model().to(device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}

    with Checkpointer(arguments.root, prefix="run", retention=Retention(keep_last=2)) as checkpointer:
        receipt = checkpointer.restore(state)  # on all ranks; each reads its own shards
        start = "a fresh start" if receipt is None else f"resumed after step {state['step']}"
        say(f"world size {world_size}: {start}, weights {fingerprint(model)}")

        for step in range(state["step"] + 1, arguments.steps + 1):
            words = batch(step, rank, world_size, device)
            loss = (model(words) - words.flip(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(arguments.pause)
            mean = loss.detach() / world_size
            distributed.all_reduce(mean)
            say(f"step {step} loss {mean.item():.4f}")
            if step % arguments.save_every == 0 or step == arguments.steps:
                state["step"] = step
                started = time.perf_counter()
                checkpointer.save(state, step=step)  # on all ranks; returns when the state may change
                blocked = 1000 * (time.perf_counter() - started)
                say(f"saving step {step} in the background, weights {fingerprint(model)}; blocked {blocked:.1f} ms")
    say(f"done: all is saved, weights {fingerprint(model)}")
    distributed.barrier()  # lets torch's threads release the tensors of the last collective
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
