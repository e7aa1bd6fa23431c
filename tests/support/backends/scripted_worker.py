"""A local backend whose worker is a short script: it answers calls as they say, without loading anything.

The ``run_id`` of a call says what the script does: echo, wait, fail, exit and others.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chockstone.backends.protocol import SaveCall
from chockstone.backends.supervision import supervisor
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.process import WorkerConfig

# It knows the frames of ``channel`` and nothing else of ours, so that it starts in no time.
WORKER = r"""
import json, os, socket, struct, sys, threading, time

sock = socket.socket(fileno=int(sys.argv[-1]))
file = sock.makefile("rb")
config = json.loads(os.environ["CHOCKSTONE_WORKER"])
if config["is_spare"]:
    if not sock.recv(1):
        sys.exit(0)
    if config["device"] == "dies when promoted":
        sys.exit(8)
lives = config["store"] + "/lives"
with open(lives, "a") as record:
    record.write("x")
life = os.path.getsize(lives)

def send(values, body=b""):
    head = json.dumps(values).encode()
    sock.sendall(struct.pack("<IQ", len(head), len(body)) + head + body)

def receive():
    lengths = file.read(12)
    if len(lengths) < 12:
        sys.exit(0)
    head, body = struct.unpack("<IQ", lengths)
    return json.loads(file.read(head)), file.read(body)

def done(number, call, values=None, body=b""):
    replies = {
        "optim_step": {"metrics": values or {}},
        "forward_backward": {"tokens": len(body)},
        "save": {"size_bytes": 1, "seal": ""},
    }
    send({"id": number, "event": "done", "values": replies[call]}, body)

def beat():
    while True:
        send({"event": "beat", "turns": 3, "busy": True})
        time.sleep(0.002)

match config["device"]:
    case "hopeless":
        send({"event": "start_failed", "error": "there is no such model"})
        sys.exit(1)
    case "dies in its first life" if life == 1:
        sys.exit(7)
    case "slow":
        time.sleep(0.1)
send({"event": "ready", "environment": {"life": life, "pid": os.getpid(), "argv": sys.argv[1:], "config": config}})
if config["device"] == "stuck":
    threading.Thread(target=beat, daemon=True).start()
if config["device"] == "beats":
    memory = {"resident_bytes": 7, "gpus": [{"name": "GPU", "used_bytes": 1, "total_bytes": 2}]}
    send({"event": "beat", "turns": 3, "busy": False, "memory": memory})
waiting = []
while True:
    message, body = receive()
    number, call, values = message["id"], message["call"], message["values"].get("params", {})
    match message["values"].get("run_id", call):
        case "stop":
            if config["device"] != "rude":
                for each in waiting:
                    done(*each)
            sys.exit(0)
        case "echo":
            done(number, call, values, body)
        case "wait":
            waiting.append((number, call))
        case "finish":
            while waiting:
                done(*waiting.pop())
            done(number, call)
        case "save":
            send({"id": number, "event": "released"})
            waiting.append((number, call))
        case "fail":
            send({"id": number, "event": "failed", "error": values})
        case "hang up":  # and take a while to die
            file.close()
            sock.close()
            time.sleep(values["seconds"])
            os._exit(1)
        case "stop reading":
            time.sleep(values["seconds"])
            os._exit(1)
        case "exit":
            os._exit(values["code"])
        case "be killed":
            os.kill(os.getpid(), values.get("signal", 9))
"""

SAVE = SaveCall(run_id="save", archive="a", kind="weights")
FAILURE = {"category": "user", "message": "no", "code": None, "needed_bytes": None, "reason": None}
PATIENT = HeartbeatLimits(check_seconds=3600, stuck_seconds=1e9)  # with workers whose hearts do not beat


@dataclass
class Rig:
    """A backend, and what it has told."""

    directory: Path
    lost: list[str] = field(default_factory=list)
    hopeless: list[str] = field(default_factory=list)

    def backend(self, device: str = "cpu", **options: Any) -> LocalBackend:
        script = self.directory / "worker.py"
        script.write_text(WORKER)
        return LocalBackend(
            WorkerConfig(models={}, store=str(self.directory), device=device),
            on_lost=self.lost.append,
            on_fatal=self.hopeless.append,
            command=[sys.executable, "-I", "-S", str(script)],
            **{"heartbeat_limits": PATIENT} | options,
        )

    @asynccontextmanager
    async def running(self, device: str = "cpu", **options: Any) -> AsyncIterator[LocalBackend]:
        backend = self.backend(device, **options)
        await backend.start()
        try:
            yield backend
        finally:
            await asyncio.wait_for(backend.stop(), 30)

    @property
    def lives(self) -> int:
        return len((self.directory / "lives").read_text())


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(supervisor, "_FIRST_DELAY_SECONDS", 0.01)
    return Rig(tmp_path)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def echo(backend: LocalBackend, **values: Any) -> dict[str, Any]:
    return dict((await asyncio.wait_for(backend.optim_step("echo", values), 30)).metrics)
