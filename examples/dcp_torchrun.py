"""Train a sharded model with FSDP2 and `torch.distributed.checkpoint`: all ranks save one verified archive.

Run it: `torchrun --nproc-per-node 2 examples/dcp_torchrun.py ./dcp-run`. Kill it and start it again, also with another
number of processes: it resumes from the newest checkpoint that is whole, with the same next loss. The root may also be
`s3://bucket/dcp-run`. On several hosts, use a directory that all hosts see.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from chockstone.checkpoints import Retention
from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter

WIDTH, BLOCKS, BATCH = 130, 4, 24  # a batch that 1, 2, 3 and 4 processes divide evenly


class TrainingState:
    """Model, optimizer and step as DCP saves and loads them: with names that do not depend on the number of ranks."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights, moments = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=moments)
        self.step = state["step"]


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)]
    model = nn.Sequential(*blocks)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def batch(step: int, rank: int, world_size: int) -> torch.Tensor:
    """This rank's part of the batch. The whole batch depends on the step alone, not on the number of ranks."""
    words = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
    return words.tensor_split(world_size)[rank]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", help="place of the checkpoints: a directory or an s3:// address")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    arguments = parser.parse_args()

    distributed.init_process_group("gloo")  # on GPUs: "cpu:gloo,cuda:nccl"
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    saving_group = distributed.new_group(backend="gloo")  # saves in the background talk beside the training

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = TrainingState(model, optimizer)

    reader = ArchiveReader(arguments.root, prefix="run")
    if reader.latest() is None:
        say(f"world size {world_size}: a fresh start")
    else:
        dcp.load({"training": state}, storage_reader=reader)  # damaged checkpoints are skipped
        say(f"world size {world_size}: resumed after step {state.step}")
        for skipped in reader.receipt.skipped if reader.receipt else ():
            say(f"skipped {skipped.name}: {skipped.reason}")

    def report(step: int) -> Callable[[Future[Any]], None]:
        return lambda done: None if done.exception() else say(f"saved step {step}")

    keep = Retention(keep_last=2)
    saving: Future[Any] | None = None
    for step in range(state.step + 1, arguments.steps + 1):
        words = batch(step, rank, world_size)
        loss = (model(words) - words.flip(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(arguments.pause)
        mean = loss.detach() / world_size
        distributed.all_reduce(mean)
        say(f"step {step} loss {mean.item()!r}")
        state.step = step
        if step % arguments.save_every == 0 or step == arguments.steps:
            if saving is not None:
                saving.result()  # the checkpoint before this one is durable, or this raises its error
            writer = ArchiveWriter(arguments.root, prefix="run", step=step, retention=keep, overwrite=True)
            answer = dcp.async_save({"training": state}, storage_writer=writer, process_group=saving_group)
            saving = answer if isinstance(answer, Future) else answer.upload_completion
            saving.add_done_callback(report(step))
    if saving is not None:
        saving.result()
    say("done: all is saved")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
