"""The example for FSDP2: saved by two ranks, it goes on with any number, and under a real torchrun after a kill."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer
from support.killed_training import ScriptForks

EXAMPLE = Path(__file__).parents[1] / "examples" / "fsdp_torchrun.py"
SAVED = re.compile(r"saving step (\d+) in the background, weights (\w+); blocked [\d.]+ ms")


def torchrun(ranks: int, root: Path, *options: str, restarts: int = 0) -> list[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launch, f"--max-restarts={restarts}", str(EXAMPLE), str(root), "--save-every=2", *options]


def environment() -> dict[str, str]:
    """With what the guide says about restarts: else the ranks may find the addresses of those before them."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def train(ranks: int, root: Path, *, steps: int) -> list[str]:
    """The lines that a life of the example says."""
    return lines(torchrun(ranks, root, f"--steps={steps}", "--pause=0"), environment())


def lines(command: list[str], environ: dict[str, str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def weights_of(line: str) -> str:
    return line.rpartition("weights ")[2].partition(";")[0]


def losses(lines: Sequence[str]) -> dict[int, float]:
    said = [line.split() for line in lines if line.startswith("step ")]
    return {int(words[1]): float(words[3]) for words in said}


@pytest.fixture(scope="module")
def scripts() -> Iterator[ScriptForks]:
    """Processes that have imported what the example imports."""
    with ScriptForks("torch", "torch._dynamo", "torch.distributed.fsdp", "chockstone.checkpoints") as forks:
        yield forks


def test_two_ranks_save_and_one_goes_on_with_the_same_weights(tmp_path: Path, scripts: ScriptForks) -> None:
    options = (str(tmp_path / "run"), "--save-every=2", "--pause=0")
    first = scripts.run_ranks(EXAMPLE, *options, "--steps=4", ranks=2)[0].lines
    second = scripts.run_ranks(EXAMPLE, *options, "--steps=6", ranks=1)[0].lines

    assert first[0].startswith("world size 2: a fresh start, weights ")
    assert [step for step, _ in SAVED.findall("\n".join(first))] == ["2", "4"]
    assert first[-1].startswith("done: all is saved, weights ")
    assert second[0] == f"world size 1: resumed after step 4, weights {weights_of(first[-1])}"
    assert list(losses([*first, *second])) == [1, 2, 3, 4, 5, 6]
    checkpointer = Checkpointer(tmp_path / "run", prefix="run")
    assert [checkpoint.name for checkpoint in checkpointer.checkpoints()] == ["run/step-00000004", "run/step-00000006"]


@pytest.mark.soak
def test_any_number_of_ranks_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    alone = train(1, tmp_path / "alone", steps=8)
    lives = [train(2, tmp_path / "run", steps=2), train(3, tmp_path / "run", steps=4)]
    lives += [train(1, tmp_path / "run", steps=6), train(4, tmp_path / "run", steps=8)]

    for before, after in itertools.pairwise(lives):
        assert weights_of(after[0]) == weights_of(before[-1])
    together = losses([line for life in lives for line in life])
    assert together == pytest.approx(losses(alone), abs=2e-4), "sums in another order, and four decimals"


@pytest.mark.soak
def test_torchrun_starts_the_ranks_again_after_one_was_killed(tmp_path: Path) -> None:
    command = torchrun(2, tmp_path / "run", "--steps=24", "--pause=0.1", restarts=2)
    said: list[str] = []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.strip())
            if line.startswith("step 9 ") and not any("resumed" in each for each in said):
                os.kill(worker_of(process.pid), signal.SIGKILL)
        process.wait(100)
    finally:
        process.terminate()  # it ends the ranks, which are in sessions of their own
        process.communicate(timeout=100)

    assert process.returncode == 0, said
    resumed = next(line for line in said if "resumed after step" in line)
    step = int(resumed.partition("after step ")[2].partition(",")[0])
    assert step in (6, 8)
    assert weights_of(resumed) == dict(SAVED.findall("\n".join(said[: said.index(resumed)])))[str(step)]
    assert said[-1].startswith("done: all is saved, weights ")


def worker_of(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(each) for task in tasks for each in task.read_text().split()]
    return max(each for each in children if EXAMPLE.name in Path(f"/proc/{each}/cmdline").read_text())
