"""``chockstone train`` as a user runs it: killed, its server killed, and interrupted, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from test_demo import is_used

COMMAND = [sys.executable, "-m", "chockstone.cli", "train", "--env=arithmetic", "--out=out", "--steps=10000"]
COMMAND += ["--batch-size=2", "--group-size=2", "--rank=4", "--save-every=2", "--evaluate-every=0", "--no-tensorboard"]


def start(home: Path) -> subprocess.Popen[str]:
    names = [name for name in os.environ if name.startswith(("TINKER_", "CHOCKSTONE_"))]
    env = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.Popen(COMMAND, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(out: Path, name: str) -> list[dict[str, object]]:
    path = out / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def saves(out: Path) -> int:
    return sum(" saved in " in str(row["text"]) for row in rows(out, "events.jsonl"))


def server_process(out: Path) -> int:
    """The child of the trainer; its own child is the worker."""
    found = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        and (line := _command_line(entry)).find(b"chockstone.cli.training.server") >= 0
        and str(out).encode() in line
    ]
    assert len(found) == 1
    return found[0]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


@pytest.mark.soak
def test_training_goes_on_whoever_is_killed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"

    with start(tmp_path) as killed:
        wait_until(lambda: saves(out) >= 1, killed)
        killed.kill()
    wait_until(lambda: not is_used(tmp_path))  # the server ended with it

    with start(tmp_path) as trainer:
        wait_until(lambda: saves(out) >= 2, trainer)
        os.kill(server_process(out), signal.SIGKILL)
        done = saves(out)
        wait_until(lambda: saves(out) >= done + 2, trainer)  # at most one was under way
        trainer.send_signal(signal.SIGINT)
        said = trainer.communicate(timeout=120)[0]

    assert trainer.returncode == 130, said
    assert "the server died with -9 and is started again" in said
    found = re.search(r"The checkpoint of step (\d+)\n +state +tinker://", said)
    assert found is not None, said
    steps = [int(str(row["step"])) for row in rows(out, "samples.jsonl")]
    assert steps == [step for step in range(1, int(found[1]) + 1) for _ in range(4)]
    wait_until(lambda: not is_used(tmp_path))
