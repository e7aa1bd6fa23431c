"""Train a sharded model with FSDP2: all ranks save into one file, and any number of ranks resumes from it.

Run it: `torchrun --nproc-per-node 2 examples/fsdp_torchrun.py ./fsdp-run`. Stop it with Ctrl-C or kill it, and start it
again with another number of processes: it resumes from the last checkpoint, with the same weights. The root may
also be `s3://bucket/fsdp-run`. On several hosts, use a directory that all hosts see.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch
from sharded_training import Ranks, read_arguments, train_step  # the file beside this one
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from chockstone.checkpoints import Checkpointer, Retention


def fingerprint(model: nn.Module) -> str:
    """A digest of the whole weights. All ranks must call it. It gathers the weights, so it suits small models only."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        digest.update(parameter.full_tensor().detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def main() -> None:
    arguments = read_arguments()
    ranks = Ranks.start()
    model = ranks.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}

    with Checkpointer(arguments.root, prefix="run", retention=Retention(keep_last=2)) as checkpointer:
        receipt = checkpointer.restore(state)  # on all ranks; each reads its own shards
        start = "a fresh start" if receipt is None else f"resumed after step {state['step']}"
        ranks.say(f"world size {ranks.world_size}: {start}, weights {fingerprint(model)}")

        for step in range(state["step"] + 1, arguments.steps + 1):
            loss = train_step(model, optimizer, ranks.batch(step))
            time.sleep(arguments.pause)
            ranks.say(f"step {step} loss {ranks.mean(loss):.4f}")
            if step % arguments.save_every == 0 or step == arguments.steps:
                state["step"] = step
                started = time.perf_counter()
                checkpointer.save(state, step=step)  # on all ranks; returns when the state may change
                blocked = 1000 * (time.perf_counter() - started)
                weights = fingerprint(model)
                ranks.say(f"saving step {step} in the background, weights {weights}; blocked {blocked:.1f} ms")
    ranks.say(f"done: all is saved, weights {fingerprint(model)}")
    distributed.barrier()  # lets torch's threads release the tensors of the last collective
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
