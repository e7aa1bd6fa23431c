"""Ray Train: a checkpoint directory that ``ray.train.report`` copies into the storage of the run, as its guide has it.

The training is in a worker process of Ray. Its tensors are in memory that this process shares, so that the measures can
clear and compare them here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from benchmarks.adapters.host import Finish, Host, Way, Ways
from benchmarks.adapters.training import ShapedModel, Training, fill_optimizer

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200",
}


@contextmanager
def open_ways(training: Training, directory: Path) -> Iterator[Ways]:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    shapes = {name: list(parameter.shape) for name, parameter in training.model.named_parameters()}
    os.environ.update(SETTINGS)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short,  # Ray makes sockets below it
        tempfile.NamedTemporaryFile(dir="/dev/shm") as shared,
        Listener(f"{short}/socket") as listener,
    ):
        os.truncate(shared.name, training.size_bytes)
        share(training, Path(shared.name), fill=True)
        os.environ["RAY_TMPDIR"] = short
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"}},
        )
        trainer = TorchTrainer(
            serve,
            train_loop_config={"socket": f"{short}/socket", "shared": shared.name, "shapes": shapes},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(name="run", storage_path=str(directory)),
        )
        run = Thread(target=trainer.fit, daemon=True)
        run.start()
        listener._listener._socket.settimeout(200)  # type: ignore[attr-defined]  # accept() itself has no timeout
        worker = listener.accept()
        try:
            yield Ways(*(Way(partial(_start, worker, way), partial(_restore, worker, way)) for way in ("own", "ours")))
        finally:
            ask(worker, do="end")
            run.join(60)
            ray.shutdown()
            share(training, None, fill=True)


def share(training: Training, path: Path | None, *, fill: bool) -> None:
    """Put weights and moments into a file in memory, or back into memory of this process; ``fill`` copies them."""
    old = training.tensors
    whole = sum(tensor.numel() for tensor in old)
    memory = torch.empty(whole) if path is None else torch.from_file(str(path), shared=True, size=whole)
    parts = memory.split([tensor.numel() for tensor in old])
    new = [part.view(tensor.shape) for part, tensor in zip(parts, old, strict=True)]
    if fill:
        for one, other in zip(new, old, strict=True):
            one.copy_(other)
    parameters = list(training.model.parameters())
    for number, parameter in enumerate(parameters):
        parameter.data = new[number]
        training.optimizer.state[parameter]["exp_avg"] = new[number + len(parameters)]
        training.optimizer.state[parameter]["exp_avg_sq"] = new[number + 2 * len(parameters)]


def ask(worker: Connection, **command: str) -> Any:
    worker.send_bytes(json.dumps(command).encode())
    return json.loads(worker.recv_bytes())


def _start(worker: Connection, way: str) -> Finish:
    ask(worker, do="start", way=way)
    return lambda: Path(ask(worker, do="finish", way=way))


def _restore(worker: Connection, way: str, path: Path) -> None:
    ask(worker, do="restore", way=way, path=str(path))


def serve(config: dict[str, Any]) -> None:
    """In the worker: save and restore when the benchmark says so."""
    import ray.train

    from chockstone.integrations.ray_train import RayTrainCheckpointer

    model = ShapedModel({name: tuple(shape) for name, shape in config["shapes"].items()}, torch.Generator())
    training = Training(model, fill_optimizer(model, torch.Generator()))
    share(training, Path(config["shared"]), fill=False)
    storage = Path(ray.train.get_context().get_storage().experiment_fs_path)
    with Client(config["socket"]) as benchmark, RayTrainCheckpointer() as checkpointer:
        ways = {"own": OwnSaves(training, storage), "ours": OurSaves(training, storage, checkpointer)}
        while True:
            command = json.loads(benchmark.recv_bytes())
            answer: str | None = None
            if command["do"] == "start":
                ways[command["way"]].start()
            elif command["do"] == "finish":
                answer = str(ways[command["way"]].finish())
            elif command["do"] == "restore":
                ways[command["way"]].restore(Path(command["path"]))
            benchmark.send_bytes(json.dumps(answer).encode())
            if command["do"] == "end":
                return


class OwnSaves:
    """A directory with a file of ``torch.save``, reported to Ray, which copies it into the storage."""

    def __init__(self, training: Training, storage: Path) -> None:
        self._training = training
        self._storage = storage
        self._step = 0
        self._has_restored = False

    def start(self) -> None:
        import ray.train

        self._step += 1
        with tempfile.TemporaryDirectory(dir=self._storage) as place:  # a disk, as the storage
            state = {"model": self._training.model.state_dict(), "optimizer": self._training.optimizer.state_dict()}
            torch.save(state, f"{place}/checkpoint.pt")
            checkpoint = ray.train.Checkpoint.from_directory(place)
            ray.train.report({"step": self._step}, checkpoint=checkpoint, checkpoint_dir_name=f"own-{self._step}")

    def finish(self) -> Path:
        return self._storage / f"own-{self._step}"

    def restore(self, path: Path) -> None:
        import ray.train

        with ray.train.Checkpoint.from_directory(str(path)).as_directory() as place:
            state = torch.load(f"{place}/checkpoint.pt", weights_only=True)
        self._training.model.load_state_dict(state["model"])
        if self._has_restored:
            self._training.optimizer.load_state_dict(state["optimizer"])
        else:  # the round that does not count, and that the benchmark compares
            refill(self._training, state["optimizer"])
            self._has_restored = True


class OurSaves:
    def __init__(self, training: Training, storage: Path, checkpointer: Any) -> None:
        self._training = training
        self._storage = storage
        self._checkpointer = checkpointer
        self._step = 0
        self._handle: Any = None

    def start(self) -> None:
        self._step += 1
        state = {"model": self._training.model, "optimizer": self._training.optimizer}
        self._handle = self._checkpointer.report({"step": self._step}, state, step=self._step)

    def finish(self) -> Path:
        return self._storage / Path(self._handle.result().name).parent

    def restore(self, path: Path) -> None:
        from chockstone.checkpoints import Checkpointer

        with Checkpointer(path) as found:
            found.restore({"model": self._training.model, "optimizer": self._training.optimizer})


def refill(training: Training, saved: dict[str, Any]) -> None:
    """Load the state of an optimizer into the tensors that it has, which the benchmark looks at."""
    kept = {parameter: dict(state) for parameter, state in training.optimizer.state.items()}
    training.optimizer.load_state_dict(saved)
    for parameter, state in kept.items():
        for name, tensor in state.items():
            tensor.copy_(training.optimizer.state[parameter][name])
        training.optimizer.state[parameter] = state


HOST = Host("ray-train", "ray.train.report", "RayTrainCheckpointer", package="ray", open=open_ways)
