"""Train a sharded model with Ray Train: all workers save one archive, and a restarted group resumes from it.

Run it: `python examples/ray_train.py ./ray-runs`. Kill a worker (its process is called `RayTrainWorker`), or kill the
script and run it again: the group resumes from the newest checkpoint that is not damaged.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import ray
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from chockstone.integrations.ray_train import RayTrainCheckpointer, from_ray


def train(config: dict[str, Any]) -> None:
    """On each worker."""
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}

    with RayTrainCheckpointer() as checkpointer:
        checkpointer.restore(state)  # the newest good checkpoint of this run, if there is one
        for step in range(state["step"] + 1, config["steps"] + 1):
            words = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            loss = (model(words) - words.flip(1)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(config["pause"])
            state["step"] = step
            is_saved = step % config["save_every"] == 0 or step == config["steps"]
            checkpointer.report({"loss": loss.item()}, state if is_saved else None, step=step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("storage", type=Path, help="directory of the runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    asked = parser.parse_args()

    ray.init(num_cpus=asked.workers, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": asked.steps, "save_every": asked.save_every, "pause": asked.pause},
        scaling_config=ScalingConfig(num_workers=asked.workers),
        run_config=RunConfig(
            name="example",
            storage_path=str(asked.storage.absolute()),
            failure_config=FailureConfig(max_failures=3),
            checkpoint_config=CheckpointConfig(num_to_keep=3),
        ),
    )
    result = trainer.fit()
    assert result.checkpoint is not None
    print(f"saved step {from_ray(result.checkpoint).load()['step']}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
