"""Two ranks work for one server, which speaks to the first of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from chockstone.backends.calls import StopCall, encode_call
from chockstone.backends.channel import BlockingChannel, ChannelClosed, Message
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.worker.service import WorkerService
from chockstone.wire.codecs.pass_result import pass_result_json
from chockstone.wire.codecs.sample_result import sample_result_json
from support.backends.bodies import pass_body, sample_body
from support.backends.fsdp.pool import environment
from support.backends.saving import make_directory
from unit.backends.worker.test_service import Client

STEP = {"learning_rate": 0.01, "eps": 1e-6}


@dataclass
class Group:
    client: Client
    ranks: list[subprocess.Popen[bytes]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextmanager
def started(config: WorkerConfig, size: int = 2) -> Iterator[Group]:
    ours, theirs = socket.socketpair()
    ours.settimeout(120)
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        ranks = []
        for rank in range(size):
            number = theirs.fileno() if rank == 0 else -1
            command = [
                sys.executable,
                str(Path(__file__).parents[3] / "support" / "backends" / "fsdp" / "rank_process.py"),
            ]
            told = [str(rank), str(size), rendezvous, str(number), json.dumps(asdict(config))]
            process = subprocess.Popen(
                [*command, *told], pass_fds=[theirs.fileno()] if rank == 0 else [], env=environment()
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        theirs.close()
        channel = stack.enter_context(_closing(BlockingChannel(ours)))
        first = channel.receive()
        assert first.values["event"] == "ready", first.values
        assert first.values["environment"]["processes"] == size
        yield Group(Client(channel), ranks)


@contextmanager
def _closing(channel: BlockingChannel) -> Iterator[BlockingChannel]:
    yield channel
    channel.close()


@contextmanager
def alone(config: WorkerConfig) -> Iterator[Client]:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    channel, far = BlockingChannel(ours), BlockingChannel(theirs)
    worker = threading.Thread(target=WorkerService(config, far, on_orphaned=lambda: None).run)
    worker.start()
    assert channel.receive().values["event"] == "ready"
    yield Client(channel)
    channel.send(encode_call(0, StopCall()))
    worker.join(60)
    ours.shutdown(socket.SHUT_RDWR)
    for reader in [thread for thread in threading.enumerate() if thread.name == "channel"]:
        reader.join(60)
    channel.close()
    far.close()


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    directory = make_directory(tmp_path / "base", "qwen3", tied=True)
    return WorkerConfig(
        models={"tiny": str(directory)},
        store=str(tmp_path / "store"),
        device="cpu",
        tokens_per_micro_batch=24,
        log_level="info",
    )


def at_once(client: Client, *calls: tuple[str, bytes, dict[str, Any]]) -> list[Message]:
    """The last words on calls that were all sent before the first was answered."""
    numbers = [client.send(word, body, **values) for word, body, values in calls]
    replies: dict[int, Message] = {}
    while len(replies) < len(numbers):
        message = client.receive()
        if message.values["event"] != "released":
            assert message.values["event"] == "done", message.values
            replies[message.values["id"]] = message
    return [replies[number] for number in numbers]


def sample(key: str, archive: str | None, seed: int = 7) -> tuple[str, bytes, dict[str, Any]]:
    body = sample_body([3, 4, 5], num_samples=2, max_tokens=6)
    return "sample", body, {"key": key, "base_model": "tiny", "archive": archive, "seed": seed}


def work(client: Client) -> dict[str, list[float]]:
    """What a server may ask, much of it at the same time. Returns the losses and the log-probabilities of samples."""
    runs = {"lora": 4, "full": 0}
    found: dict[str, list[float]] = {"losses": [], "samples": []}

    def take_losses(replies: list[Message]) -> None:
        found["losses"] += [pass_result_json(reply.body)["metrics"]["loss:sum"] for reply in replies]

    def take_samples(replies: list[Message]) -> None:
        for reply in replies:
            sequences = sample_result_json(reply.body)["sequences"]
            found["samples"] += [number for one in sequences for number in (*one["tokens"], *one["logprobs"])]

    for name, rank in runs.items():
        client.values("open_run", run_id=name, base_model="tiny", spec={"rank": rank, "seed": 1})
    for step in range(2):
        passes = [("forward_backward", pass_body(7, 5, 9, seed=step), {"run_id": name}) for name in runs]
        replies = at_once(client, *passes, sample("a", None), sample("b", None, seed=8))
        take_losses(replies[:2])
        take_samples(replies[2:])
        at_once(client, *[("optim_step", b"", {"run_id": name, "params": STEP}) for name in runs])
    at_once(
        client,
        *[("snapshot", b"", {"run_id": name, "archive": f"{name}-now"}) for name in runs],
        *[("save", b"", client.save(f"{name}-saved", run_id=name)) for name in runs],
        sample("c", None),
    )
    replies = at_once(
        client,
        *[sample(name, f"{name}-now") for name in runs],
        *[sample(f"s-{name}", f"{name}-saved") for name in runs],
    )
    take_samples(replies)
    at_once(client, *[("save", b"", client.save(f"{name}-recovery", "recovery", run_id=name)) for name in runs])
    for name, rank in runs.items():
        client.values("open_run", run_id=f"{name}-2", base_model="tiny", spec={"rank": rank, "seed": 1})
        client.values("load", run_id=f"{name}-2", archive=f"{name}-recovery", with_optimizer=True)
    again = [
        ("forward_backward", pass_body(6, 8, seed=5), {"run_id": f"{name}{suffix}"})
        for name in runs
        for suffix in ("", "-2")
    ]
    take_losses(at_once(client, *again))
    assert client.failure("load", run_id="lora", archive="nowhere", with_optimizer=True)[1] == "missing"
    assert client.failure("optim_step", run_id="nobody", params=STEP)[0] == "server"
    at_once(client, *[("forget", b"", {"archive": f"{name}-now"}) for name in runs])
    for name in runs:
        client.values("close_run", run_id=name)
    return found


def test_a_server_finds_in_two_ranks_what_it_finds_in_one_worker(config: WorkerConfig, tmp_path: Path) -> None:
    with started(config) as group:
        found = work(group.client)
        group.client._channel.send(encode_call(0, StopCall()))
        codes = [process.wait(60) for process in group.ranks]
    with alone(replace(config, store=str(tmp_path / "other"))) as client:
        expected = work(client)

    assert codes == [0, 0]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["samples"] == pytest.approx(expected["samples"], rel=1e-4)
    ours, theirs = tmp_path / "store", tmp_path / "other"
    assert sorted(path.name for path in ours.glob("*.tar")) == sorted(path.name for path in theirs.glob("*.tar"))


@pytest.mark.soak
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_takes_the_others_with_it(config: WorkerConfig, victim: int) -> None:
    with started(config) as group:
        group.client.values("open_run", run_id="run", base_model="tiny", spec={"rank": 4, "seed": 1})
        group.client.values("forward_backward", pass_body(7, 5), run_id="run")

        group.ranks[victim].kill()

        assert group.ranks[1 - victim].wait(30) == 3
        with pytest.raises(ChannelClosed):
            while True:
                group.client.receive()
