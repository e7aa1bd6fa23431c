"""Models in directories, and worker checkpoints whose compute thread is the test."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.base_model import BaseModel, load_base_model
from chockstone.backends.training.process_group import SINGLE_PROCESS, ProcessGroup
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker.checkpoints import WorkerCheckpoints
from chockstone.checkpoints import Archive
from support.tiny_models import lora_run, tiny_model, tiny_tokenizer

T = TypeVar("T")
TOKENS = torch.arange(20)[None] * 3 % 97


class Desk:
    """Does what the compute thread would, while it waits."""

    def __init__(self, store: Path, *, process_group: ProcessGroup = SINGLE_PROCESS) -> None:
        self.store = store
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.checkpoints = WorkerCheckpoints(str(store), post=self._inbox.put, process_group=process_group)

    def wait(self, future: Future[T]) -> T:
        future.add_done_callback(lambda _: self._inbox.put(lambda: None))
        while not future.done():
            self._inbox.get(timeout=60)()
        return future.result()

    def save(self, run: TrainedRun, archive: str, *, kind: str, **options: Any) -> int:
        """Returns the archive's size."""
        self.wait(self.checkpoints.room())
        options = {"metadata": {}, "ttl_seconds": None} | options
        return self.wait(self.checkpoints.save(run, archive, kind=kind, **options)).size_bytes

    def open(self, archive: str) -> Archive:
        return Archive.open(self.store / f"{archive}.tar")


@contextmanager
def open_desk(store: Path) -> Iterator[Desk]:
    desk = Desk(store)
    yield desk
    desk.checkpoints.close()


def make_directory(directory: Path, architecture: str, *, tied: bool, dtype: torch.dtype = torch.float32) -> Path:
    tiny_model(architecture, tied=tied, dtype=dtype).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def make_mixture(directory: Path) -> Path:
    """A model whose experts are one tensor in memory and many in its files."""
    config = Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        Qwen3MoeForCausalLM(config).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def make_base(
    directory: Path, architecture: str = "qwen3", *, tied: bool = False, dtype: torch.dtype = torch.float32
) -> BaseModel:
    """Loaded from a directory that holds what ``save_pretrained`` writes."""
    make_directory(directory, architecture, tied=tied, dtype=dtype)
    return load_base_model("tiny", directory, device="cpu", dtype=str(dtype).removeprefix("torch."))


def full_run(base: BaseModel) -> TrainedRun:
    """A run of rank 0 whose weights are no longer the base's."""
    run = TrainedRun(base, RunSpec(rank=0, seed=0))
    generator = torch.Generator().manual_seed(3)
    for weight in run.state()["weights"].values():
        weight.add_(torch.empty(weight.shape).normal_(0, 0.05, generator=generator))
    return run


def make_run(base: BaseModel, *, rank: int = 4, **flags: bool) -> TrainedRun:
    return lora_run(base, rank=rank, **flags) if rank else full_run(base)


@torch.no_grad()
def live_logits(run: TrainedRun) -> torch.Tensor:
    with run._weights.applied():
        logits: torch.Tensor = run.base.model(TOKENS).logits.float()
    return logits


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(TOKENS).logits.float()
    return logits


def assert_same_logits(actual: torch.Tensor, expected: torch.Tensor, *, tolerance: float = 1e-4) -> None:
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)
