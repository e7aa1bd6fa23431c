"""The Ray backend with a driver that knows nothing of Ray: what it tells, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chockstone.backends.protocol import PassReply, StepReply, WorkerLost
from chockstone.backends.ray.backend import RayBackend
from chockstone.backends.ray.plan import RayPlan
from chockstone.backends.supervision import supervisor
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.backends.supervision.process import WorkerConfig

# It is its own rank 0, and dies when it is told so. It knows the frames of ``channel`` and nothing else of ours.
DRIVER = r"""
import json, os, socket, struct, sys, threading, time

class Channel:
    def __init__(self, sock):
        self.sock, self.file = sock, sock.makefile("rb")

    def send(self, values, body=b""):
        head = json.dumps(values).encode()
        self.sock.sendall(struct.pack("<IQ", len(head), len(body)) + head + body)

    def receive(self):
        lengths = self.file.read(12)
        if len(lengths) < 12:
            return None, b""
        head, body = struct.unpack("<IQ", lengths)
        return json.loads(self.file.read(head)), self.file.read(body)

told = json.loads(os.environ["CHOCKSTONE_RAY"])
manner, lives = told["config"]["device"], told["config"]["store"] + "/lives"
with open(lives, "a") as record:
    record.write("x")
life = os.path.getsize(lives)
server = Channel(socket.socket(fileno=int(sys.argv[-1])))

def leave_with_the_server():
    server.receive()
    os._exit(0)

if manner == "refused" or (manner == "refused in its second life" and life == 2):
    server.send({"event": "refused", "reason": "there is no place"})
    sys.exit(0)
if manner == "never placed":
    leave_with_the_server()
host = "192.0.2.1" if manner == "elsewhere" else "127.0.0.1"  # which is nobody's address
server.send({"event": "placed", "host": host, "workers": 2, "nodes": ["a", "b"]})
start, _ = server.receive()
if start is None:
    sys.exit(0)
threading.Thread(target=leave_with_the_server, daemon=True).start()
where = (start["host"], start["port"])
strangers = []
if manner == "strangers":
    for token in (b"x" * len(start["token"]), b"", b"short"):
        with socket.create_connection(where) as stranger:
            stranger.sendall(token)
            stranger.shutdown(socket.SHUT_WR)
            strangers.append(len(stranger.recv(1)))
sock = socket.create_connection(where)
sock.sendall(start["token"].encode())
leader = Channel(sock)
waiting = None
facts = {"life": life, "strangers": strangers, "environ": sorted(os.environ), "plan": told["plan"]}
leader.send({"event": "ready", "environment": facts})
while True:
    message, body = leader.receive()
    if message is None:
        time.sleep(3600)
    number, call, values = message["id"], message["call"], message["values"]
    match values.get("run_id", call):
        case "echo":
            reply = {"metrics": values["params"]} if call == "optim_step" else {"tokens": len(body)}
            leader.send({"id": number, "event": "done", "values": reply}, body)
        case "be killed":
            os.kill(os.getpid(), 9)
        case "lose one":
            server.send({"event": "lost", "reason": "worker 1 died"})
            time.sleep(3600)
        case "hang up":
            sock.shutdown(socket.SHUT_RDWR)
        case "stop":
            if waiting is not None:
                leader.send({"id": waiting, "event": "done", "values": {"metrics": {}}})
            sock.close()
            server.send({"event": "ended"})
            sys.exit(0)
        case "wait":
            waiting = number
"""
KILLED = "signal 9 (SIGKILL, sent manually or by the OOM killer)"
PATIENT = HeartbeatLimits(check_seconds=3600, stuck_seconds=1e9)


@dataclass
class Rig:
    """A backend, and what it has told."""

    directory: Path
    lost: list[str] = field(default_factory=list)
    hopeless: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self, manner: str = "", heartbeat_limits: HeartbeatLimits = PATIENT) -> AsyncIterator[RayBackend]:
        script = self.directory / "driver.py"
        script.write_text(DRIVER)
        backend = RayBackend(
            RayPlan(workers=2),
            WorkerConfig(models={}, store=str(self.directory), device=manner),
            on_lost=self.lost.append,
            on_fatal=self.hopeless.append,
            command=[sys.executable, "-I", "-S", str(script)],
            heartbeat_limits=heartbeat_limits,
        )
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


async def echo(backend: RayBackend, **values: Any) -> dict[str, Any]:
    return dict((await asyncio.wait_for(backend.optim_step("echo", values), 30)).metrics)


async def test_a_call_goes_to_rank_0_and_comes_back(rig: Rig) -> None:
    async with rig.running() as backend:
        stepped = await asyncio.wait_for(backend.optim_step("echo", {"a": [1, "ä"]}), 30)
        passed = await asyncio.wait_for(backend.forward_backward("echo", b"\x00body"), 30)

    assert stepped == StepReply(metrics={"a": [1, "ä"]})  # type: ignore[dict-item]  # whatever was sent comes back
    assert passed == PassReply(result=b"\x00body", tokens=5)
    assert rig.lost == []


async def test_only_who_has_the_token_comes_in(rig: Rig) -> None:
    async with rig.running("strangers") as backend:
        assert await echo(backend, a=1) == {"a": 1}

    assert backend.environment["strangers"] == [0, 0, 0]  # the door was shut before them


async def test_the_driver_inherits_no_secret_of_the_server(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHOCKSTONE_KEYS", "CHOCKSTONE_DATABASE", "TINKER_API_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "for the store, in a cluster of its own")

    async with rig.running() as backend:
        await asyncio.wait_for(backend.ready(), 30)

    passed = {
        name for name in backend.environment["environ"] if name.startswith(("CHOCKSTONE_", "TINKER_", "PG", "AWS_"))
    }
    assert passed == {"CHOCKSTONE_RAY", "AWS_SECRET_ACCESS_KEY"}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("lose one", "worker 1 died"),
        (
            "be killed",
            "the process that speaks to Ray ended with signal 9 (SIGKILL, sent manually or by the OOM killer)",
        ),
    ],
)
async def test_what_is_lost_fails_its_calls_and_another_group_is_made(rig: Rig, word: str, reason: str) -> None:
    async with rig.running() as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)

        with pytest.raises(WorkerLost):
            await asyncio.wait_for(backend.optim_step(word, {}), 30)
        with pytest.raises(WorkerLost):
            await asyncio.wait_for(waiting, 30)

        assert await echo(backend, a=1) == {"a": 1}
        assert (backend.environment["life"], backend.generation) == (2, 2)
    assert rig.lost == [reason]


async def test_a_connection_that_is_lost_is_a_group_that_is_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although its driver has not noticed anything."""
    monkeypatch.setattr("chockstone.backends.ray.backend._REASON_SECONDS", 0.05)
    async with rig.running() as backend:
        with pytest.raises(WorkerLost):
            await asyncio.wait_for(backend.optim_step("hang up", {}), 30)

        await echo(backend)
    assert rig.lost == ["the connection to the first worker was lost"]


async def test_a_group_without_a_place_is_not_tried_again(rig: Rig) -> None:
    async with rig.running("refused") as backend:
        with pytest.raises(WorkerLost):
            await echo(backend)

    assert rig.hopeless == ["there is no place"]
    assert rig.lives == 1


async def test_a_place_that_was_there_once_is_waited_for(rig: Rig) -> None:
    async with rig.running("refused in its second life") as backend:
        with pytest.raises(WorkerLost):
            await asyncio.wait_for(backend.optim_step("lose one", {}), 30)
        await echo(backend)

        assert backend.environment["life"] == 3
    assert rig.lost == ["worker 1 died", "there is no place"]
    assert rig.hopeless == []


async def test_a_server_that_workers_cannot_reach_says_so(rig: Rig) -> None:
    async with rig.running("elsewhere") as backend:
        with pytest.raises(WorkerLost):
            await echo(backend)

    assert "workers cannot reach this server on 192.0.2.1" in rig.hopeless[0]


async def test_stopping_lets_the_group_finish(rig: Rig) -> None:
    async with rig.running() as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)

        await asyncio.wait_for(backend.stop(), 30)

        await waiting
    assert rig.lost == []
    assert rig.lives == 1


async def test_a_group_may_be_stopped_while_it_waits_for_its_place(rig: Rig) -> None:
    async with rig.running("never placed") as backend:
        waiting = asyncio.create_task(echo(backend))
        while not (rig.directory / "lives").exists():
            await asyncio.sleep(0.01)

        await asyncio.wait_for(backend.stop(), 30)

        with pytest.raises(WorkerLost):
            await waiting
    assert rig.lost == []


async def test_a_killed_group_ends_for_good(rig: Rig) -> None:
    async with rig.running() as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)

        backend.kill()

        with pytest.raises(WorkerLost):
            await asyncio.wait_for(waiting, 30)
    assert rig.lives == 1


async def test_a_group_that_hangs_is_killed(rig: Rig) -> None:
    async with rig.running(heartbeat_limits=HeartbeatLimits(check_seconds=0.02, silence_checks=10)) as backend:
        with pytest.raises(WorkerLost, match="hung: nothing came from it"):
            await asyncio.wait_for(backend.optim_step("wait", {}), 30)


async def test_no_descriptor_is_left_behind(rig: Rig) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with rig.running() as backend:
        for _ in range(3):
            with pytest.raises(WorkerLost):
                await asyncio.wait_for(backend.optim_step("lose one", {}), 30)
        await echo(backend)

    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # a thread pool's


async def test_where_ray_is_absent_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('there is none')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told: list[str] = []
    backend = RayBackend(RayPlan(), WorkerConfig(models={}, store=str(tmp_path)), on_fatal=told.append)

    await backend.start()
    with pytest.raises(WorkerLost):
        await asyncio.wait_for(backend.ready(), 60)
    await backend.stop()

    assert told == ["Ray cannot be imported (there is none): pip install 'chockstone[ray]'"]
