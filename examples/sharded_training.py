"""What the examples for FSDP2 share: a model, its batches and the process group. Import it from a script beside it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, BLOCKS, BATCH = 130, 4, 24  # a batch that 1, 2, 3 and 4 processes divide evenly


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that train together, and the device of this one."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def start(cls) -> Ranks:
        """Join the process group of torchrun. Do this before the checkpoint library, which uses the group."""
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        distributed.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
        rank = distributed.get_rank()
        device = torch.device(kind, rank % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)
        if kind == "cuda":
            torch.cuda.set_device(device)
        return cls(rank, distributed.get_world_size(), device)

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"{text}\n", end="", flush=True)  # one write: saves report from another thread

    def mean(self, loss: torch.Tensor) -> float:
        """The loss of the whole batch. All ranks call it."""
        mean = loss.detach() / self.world_size
        distributed.all_reduce(mean)
        return mean.item()

    def batch(self, step: int) -> torch.Tensor:
        """This rank's part of the batch. The whole batch depends on the step alone, not on the number of ranks."""
        words = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
        return words.tensor_split(self.world_size)[self.rank].to(self.device)

    def make_model(self) -> nn.Sequential:
        """The same weights on any number of ranks, each with its shards."""
        torch.manual_seed(7)
        blocks = [
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)
        ]
        model = nn.Sequential(*blocks).to(self.device)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, words: torch.Tensor) -> torch.Tensor:
    """Learn to reverse the batch; returns the loss."""
    loss: torch.Tensor = (model(words) - words.flip(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    optimizer.step()
    return loss


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", help="place of the checkpoints: a directory or an s3:// address")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    return parser.parse_args()
