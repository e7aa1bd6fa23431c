from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from chockstone.backends.channel import BlockingChannel
from chockstone.backends.supervision.process import WorkerConfig, WorkerProcess, spawn, spawn_worker

# Writes its settings and the arguments it was given, then waits until the channel is closed.
SCRIPT = """
import json, os, socket, sys
sock = socket.socket(fileno=int(sys.argv[-1]))
environ = os.environ
told = {"config": environ.get("CHOCKSTONE_WORKER"), "offline": environ.get("HF_HUB_OFFLINE"), "argv": sys.argv[2:],
        "gpus": environ.get("CUDA_VISIBLE_DEVICES")}
head = json.dumps(told).encode()
sock.sendall(len(head).to_bytes(4, "little") + bytes(8) + head)
sock.recv(1)
if sys.argv[1] == "stubborn":
    import time
    time.sleep(3600)
sys.exit(5)
"""


def command(manner: str = "") -> list[str]:
    return [sys.executable, "-I", "-c", SCRIPT, manner]


def started(manner: str = "", *, leave_seconds: float) -> WorkerProcess:
    """A process that has started, and waits for its channel to be closed."""
    process = spawn(command(manner), environment=os.environ, leave_seconds=leave_seconds)
    assert process.channel.recv(1 << 16)  # all that it sends
    return process


def test_a_worker_gets_its_settings_in_the_environment() -> None:
    config = WorkerConfig(models={"tiny": "/models/tiny"}, store="/store", threads=2)

    worker = spawn_worker(config, command=command())
    channel = BlockingChannel(worker.channel)
    told = channel.receive().values
    channel.close()

    assert WorkerConfig(**json.loads(told["config"])) == config
    assert told["offline"] == "1"
    assert len(told["argv"]) == 1 and told["argv"][0].isdigit(), "its command line has a descriptor and no settings"
    assert worker.process.wait(30) == 5


def test_a_worker_sees_no_other_gpu_than_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")

    def gpus_of(config: WorkerConfig) -> str:
        worker = spawn_worker(config, command=command())
        channel = BlockingChannel(worker.channel)
        told = channel.receive().values
        channel.close()
        worker.process.wait(30)
        return str(told["gpus"])

    assert gpus_of(WorkerConfig(models={}, store="/store", gpu="3")) == "3"
    assert gpus_of(WorkerConfig(models={}, store="/store")) == "2,3"


def test_a_process_can_give_way_to_its_server_and_gets_no_signals_of_the_terminal() -> None:
    process = started(leave_seconds=30)

    assert os.getsid(process.process.pid) == os.getsid(0), "priorities count inside of a session only"
    assert os.getpgid(process.process.pid) == process.process.pid

    process.end()


def test_a_process_that_ends_in_time_is_not_killed() -> None:
    process = started(leave_seconds=30)

    process.end()

    assert process.process.returncode == 5


def test_a_process_that_does_not_end_in_time_is_killed() -> None:
    process = started("stubborn", leave_seconds=0.2)
    began = time.monotonic()

    process.end()

    assert process.process.returncode == -9
    assert time.monotonic() - began < 30


def test_a_program_that_is_not_there_leaves_no_socket_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="No such file"):
        spawn([str(tmp_path / "nothing")], environment={})

    assert len(os.listdir("/proc/self/fd")) == before
