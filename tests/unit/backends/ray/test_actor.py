"""The actor's work in a process of its own, without Ray: it connects to the server and works until it is stopped."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chockstone.backends.calls import StopCall, encode_call
from chockstone.backends.ray.rank_listener import RankListener
from chockstone.backends.supervision.process import WorkerConfig
from support.backends.fsdp.pool import environment
from support.backends.saving import make_directory

PROGRAM = """
import sys
from chockstone.backends.ray.actor import ChockstoneWorker
try:
    ChockstoneWorker().run(sys.argv[1])
except RuntimeError as error:
    print(error)
    sys.exit(3)
"""


def start(config: WorkerConfig, **settings: Any) -> subprocess.Popen[str]:
    request = json.dumps({"config": asdict(config), "rank": 0, "world_size": 1, "host": "127.0.0.1", **settings})
    command = [sys.executable, "-c", PROGRAM, request]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


async def test_the_only_rank_works_until_the_server_stops_it(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "model", "qwen3", tied=True)
    config = WorkerConfig(models={"tiny": str(directory)}, store=str(tmp_path / "store"), device="cpu", threads=1)
    listener = RankListener()
    await listener.open("127.0.0.1")

    with start(config, port=listener.port, token=listener.token) as process:
        channel = await asyncio.wait_for(listener.connected, 120)
        first = await asyncio.wait_for(channel.receive(), 120)
        await channel.send(encode_call(0, StopCall()))
        code = await asyncio.to_thread(process.wait, 120)
        channel.close()

    assert first.values["event"] == "ready"
    assert code == 0


def test_a_failure_is_raised_as_a_class_that_every_driver_knows(tmp_path: Path) -> None:
    config = WorkerConfig(models={}, store=str(tmp_path), device="cpu", threads=1)

    with start(config, port=1, token="x" * 32) as process:
        output, _ = process.communicate(timeout=120)

    assert process.returncode == 3
    assert output.startswith("ConnectionRefusedError: ")
