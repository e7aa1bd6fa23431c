"""Many ranks: DDP through the plugin, FSDP2 through the strategy; one process resumes what two ranks saved."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from chockstone.integrations.lightning import ArchiveCheckpointIO
from support.killed_training import ScriptForks, run_training

SCRIPT = Path(__file__).parents[3] / "support" / "integrations" / "lightning_ranks.py"


def test_two_ranks_resume_with_the_losses_of_a_run_left_alone(tmp_path: Path, scripts: ScriptForks) -> None:
    runs = scripts.run_ranks(SCRIPT, str(tmp_path), ranks=2)

    assert ["the losses are the same" in run.lines for run in runs] == [True, True]
    assert sorted(os.listdir(tmp_path / "fsdp" / "run")) == ["epoch=0-step=6.ckpt", "last.ckpt"]
    whole = ArchiveCheckpointIO().load_checkpoint(tmp_path / "fsdp" / "run" / "last.ckpt")
    replicated = ArchiveCheckpointIO().load_checkpoint(tmp_path / "ddp" / "run" / "last.ckpt")
    shapes = {name: value.shape for name, value in whole["state_dict"].items()}
    assert shapes == {name: value.shape for name, value in replicated["state_dict"].items()}


@pytest.mark.soak
def test_torchrun_starts_such_ranks(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    run = run_training(
        [*torchrun, str(SCRIPT), str(tmp_path)], environment={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    )

    assert run.lines.count("the losses are the same") == 2
