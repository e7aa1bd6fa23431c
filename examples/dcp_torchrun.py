"""Train a sharded model with FSDP2 and `torch.distributed.checkpoint`: all ranks save one verified archive.

Run it: `torchrun --nproc-per-node 2 examples/dcp_torchrun.py ./dcp-run`. Kill it and start it again, also with another
number of processes: it resumes from the newest checkpoint that is whole, with the same next loss. The root may also be
`s3://bucket/dcp-run`. On several hosts, use a directory that all hosts see.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from sharded_training import Ranks, read_arguments, train_step  # the file beside this one
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from chockstone.checkpoints import Retention
from chockstone.integrations.dcp import ArchiveReader, ArchiveWriter


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


def main() -> None:
    arguments = read_arguments()
    ranks = Ranks.start()
    saving_group = distributed.new_group(backend="gloo")  # saves in the background talk beside the training
    model = ranks.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = TrainingState(model, optimizer)

    reader = ArchiveReader(arguments.root, prefix="run")
    if reader.latest() is None:
        ranks.say(f"world size {ranks.world_size}: a fresh start")
    else:
        dcp.load({"training": state}, storage_reader=reader)  # damaged checkpoints are skipped
        ranks.say(f"world size {ranks.world_size}: resumed after step {state.step}")
        for skipped in reader.receipt.skipped if reader.receipt else ():
            ranks.say(f"skipped {skipped.name}: {skipped.reason}")

    def report(step: int) -> Callable[[Future[Any]], None]:
        return lambda done: None if done.exception() else ranks.say(f"saved step {step}")

    keep = Retention(keep_last=2)
    saving: Future[Any] | None = None
    for step in range(state.step + 1, arguments.steps + 1):
        loss = train_step(model, optimizer, ranks.batch(step))
        time.sleep(arguments.pause)
        ranks.say(f"step {step} loss {ranks.mean(loss)!r}")
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
    ranks.say("done: all is saved")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
