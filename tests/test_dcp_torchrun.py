"""The example for torch.distributed.checkpoint under a real torchrun: killed and damaged, it loses one interval."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from chockstone.checkpoints import Archive

EXAMPLE = Path(__file__).parents[1] / "examples" / "dcp_torchrun.py"
LOSS = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)


def start(root: Path, *options: str) -> subprocess.Popen[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launch, str(EXAMPLE), str(root), "--save-every=2", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def end(process: subprocess.Popen[str]) -> str:
    """Wait for the end; what it wrote to stderr."""
    try:
        return process.communicate(timeout=200)[1]
    finally:
        process.kill()


def ranks_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(each) for task in tasks for each in task.read_text().split()]
    return sorted(each for each in children if EXAMPLE.name in Path(f"/proc/{each}/cmdline").read_text())


def flip_a_bit(path: Path) -> None:
    with Archive.open(path) as archive:
        tensor = max(archive.all_tensors(), key=lambda tensor: tensor.entry.size)
    with path.open("r+b") as file:
        file.seek(tensor.offset + 1000)
        byte = file.read(1)[0]
        file.seek(tensor.offset + 1000)
        file.write(bytes([byte ^ 1]))


def test_a_killed_run_with_a_damaged_checkpoint_resumes_one_interval_earlier_with_the_same_losses(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    first = start(tmp_path / "run", "--steps=1000", "--pause=0.02")
    assert first.stdout is not None
    for line in first.stdout:
        said.append(line)
        if line.startswith("step ") and "saved step 4\n" in said:
            os.kill(ranks_of(first.pid)[-1], signal.SIGKILL)
            break
    said.append(first.stdout.read())
    complaints = end(first)
    before = dict(LOSS.findall("".join(said)))
    assert len(before) >= 5, complaints

    archives = sorted((tmp_path / "run" / "run").glob("step-*.tar"))
    newest, older = (int(path.stem.removeprefix("step-")) for path in archives[:-3:-1])
    assert newest - older == 2
    flip_a_bit(archives[-1])
    second = start(tmp_path / "run", f"--steps={newest}", "--pause=0")
    assert second.stdout is not None
    resumed = second.stdout.read()
    complaints = end(second)

    assert f"world size 2: resumed after step {older}\n" in resumed, complaints
    assert f"skipped run/step-{newest:08d}: " in resumed
    after = dict(LOSS.findall(resumed))
    assert list(after) == [str(older + 1), str(newest)]
    assert after == {step: before[step] for step in after}, "bit by bit"
    assert second.returncode == 0, complaints
