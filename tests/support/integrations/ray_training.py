"""A Ray Train run in a process of its own: two workers share a model with FSDP2, and one of them is killed.

Attempt 1 saves after steps 2 and 4, saves step 6 as if the group had been lost before Ray got it, saves step 8, flips a
bit in that archive, and loses a worker in step 9. Attempt 2 runs to the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from chockstone.checkpoints import Admission, Store
from chockstone.integrations.ray_train import RayTrainCheckpointer, from_ray
from support.checkpoints.damage import flip

STEPS = 10


def train(config: dict[str, Any]) -> None:
    import torch
    from torch.distributed.fsdp import fully_shard

    place, rank = Path(config["place"]), ray.train.get_context().get_world_rank()
    is_first = not (place / "has-started").exists()
    ray.train.collective.barrier()
    (place / "has-started").touch()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}

    opened = threading.Event()

    class Gate(Admission):
        """Holds the first save back until the training is past it; fails it if the training waits for it."""

        def check(self, store: Store, *, prefix: str, name: str, size: int) -> None:
            if not opened.wait(60):
                raise TimeoutError("the training waits for a save in the background")

    def note(**facts: object) -> None:
        with (place / f"rank-{rank}.jsonl").open("a") as events:
            print(json.dumps({"attempt": 1 if is_first else 2, **facts}), file=events, flush=True)

    with RayTrainCheckpointer(admission=Gate()) as checkpointer:
        receipt = checkpointer.restore(state)
        note(restored=receipt and receipt.step, skipped=[each.name for each in receipt.skipped] if receipt else [])
        for step in range(state["step"] + 1, STEPS + 1):
            torch.manual_seed(100 * step + rank)
            loss = model(torch.randn(4, 16)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            note(step=step, loss=loss.item().hex())
            state["step"] = step
            if is_first and step == 6:
                checkpointer._checkpointer.save(state, name="checkpoint_00000006-lost/state", step=step).result()
            elif step % 2 == 0:
                handle = checkpointer.report({"loss": loss.item(), "words": "kept"}, state, step=step)
                if handle is not None and is_first and step == 8:
                    saved = handle.result()
                    ray.train.get_all_reported_checkpoints()  # returns when Ray has it
                    if rank == 0:
                        flip(place / "runs" / "run" / f"{saved.name}.tar", saved.size_bytes // 2)
            elif is_first and step == 9:
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()  # until Ray ends this worker, too
            else:
                checkpointer.report({"loss": loss.item()})
                if step > 1:
                    opened.set()


def main(place: str) -> None:
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 << 20)
    trainer = TorchTrainer(
        train,
        train_loop_config={"place": place},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=f"{place}/runs",
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    state = from_ray(result.checkpoint).load()
    facts = {
        "metrics": result.metrics,
        "step": state["step"],
        "kept": sorted(Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints),
    }
    Path(place, "result.json").write_text(json.dumps(facts))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
