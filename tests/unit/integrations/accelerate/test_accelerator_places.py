"""The accelerator on two ranks and on S3."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from chockstone.integrations.accelerate import ArchiveAccelerator
from support.killed_training import ScriptForks, run_training
from support.loopback_s3 import make_bucket, s3_server, set_environment

SCRIPT = Path(__file__).parents[3] / "support" / "integrations" / "accelerate_ranks.py"


def test_two_ranks_resume_with_the_losses_of_a_loop_left_alone(tmp_path: Path, scripts: ScriptForks) -> None:
    runs = scripts.run_ranks(SCRIPT, str(tmp_path), ranks=2)

    assert ["the losses are the same after checkpoint_0/state" in run.lines for run in runs] == [True, True]


@pytest.mark.soak
def test_torchrun_starts_such_ranks(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    run = run_training(
        [*torchrun, str(SCRIPT), str(tmp_path)], environment={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    )

    assert run.lines.count("the losses are the same after checkpoint_0/state") == 2


def test_a_checkpoint_on_s3_is_saved_and_loaded_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as url:
        make_bucket(url, "my-bucket")
        set_environment(monkeypatch, url)
        accelerator = ArchiveAccelerator(cpu=True)
        model = accelerator.prepare(torch.nn.Linear(2, 2))
        saved = model.weight.detach().clone()

        accelerator.save_state("s3://my-bucket/run/a")
        torch.nn.init.zeros_(model.weight)
        receipt = accelerator.load_state("s3://my-bucket/run/a")
        torch.nn.init.zeros_(model.weight)
        from_folder = accelerator.load_state("s3://my-bucket/run")
        accelerator.end_training()
    for each in (AcceleratorState, PartialState, GradientState):
        each._reset_state()

    assert torch.equal(model.weight, saved)
    assert receipt is not None and from_folder is not None
    assert (receipt.url, from_folder.name) == ("s3://my-bucket/run/a", "a/state")
