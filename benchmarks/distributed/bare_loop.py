"""The bare loop: full fine-tuning with FSDP2 as a user writes it under torchrun, without a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from transformers import AutoModelForCausalLM


class BareLoop:
    def __init__(self, directory: Path, mesh: DeviceMesh, *, learning_rate: float) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        for layer in self._model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self._model, mesh=mesh)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=learning_rate, fused=True)

    def train(self, sequences: Sequence[Sequence[int]], *, steps: int) -> dict[str, float]:
        """Each rank has its share of the batch. Seconds of all steps, and the loss of all ranks in the first."""
        mine = torch.tensor(sequences[distributed.get_rank() :: distributed.get_world_size()])
        losses: list[float] = []
        distributed.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            logits = self._model(input_ids=mine[:, :-1], use_cache=False).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten(), reduction="sum")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1e9)  # a server tells the norm, too
            self._optimizer.step()
            self._optimizer.zero_grad()
            losses.append(float(loss.detach()))
        seconds = time.perf_counter() - began
        first = torch.tensor(losses[0], dtype=torch.float64)
        distributed.all_reduce(first)
        return {"seconds": seconds, "loss": float(first)}
