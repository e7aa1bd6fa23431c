"""Our arithmetic in a bare loop: what our backend's ranks compute, without the channel that commands them."""

from __future__ import annotations

import time
from base64 import b64decode
from pathlib import Path

import torch.distributed as distributed

from chockstone.backends.fsdp.base_model import load_sharded_base
from chockstone.backends.fsdp.process_group import DistributedProcessGroup
from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.pass_request import decode_pass


class OwnLoop:
    def __init__(self, directory: Path, *, learning_rate: float) -> None:
        base = load_sharded_base(
            "model", directory, device="cpu", dtype="auto", process_group=DistributedProcessGroup(None)
        )
        self._run = TrainedRun(base, RunSpec(rank=0, seed=1))
        self._params = OptimStep(learning_rate=learning_rate)

    def train(self, body: str, *, steps: int) -> dict[str, float]:
        """``body``: a request as the server would pass it on, in base64. Seconds of all steps."""
        request = b64decode(body)
        distributed.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            for _ in self._run.apply(decode_pass(request), {}):
                pass
            self._run.optim_step(self._params)
        return {"seconds": time.perf_counter() - began}
