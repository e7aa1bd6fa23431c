"""The worker service, called over its channel."""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyrage
import pytest

from chockstone.backends.calls import StopCall, decode_error, encode_call
from chockstone.backends.channel import BlockingChannel, Message
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.worker.service import WorkerService
from chockstone.checkpoints import Archive, verify_archive
from chockstone.checkpoints.saving.job import SaveJob
from support.backends.bodies import pass_body, sample_body
from support.backends.saving import make_directory

SPEC = {"rank": 4, "seed": 1}


class Client:
    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    def call(self, name: str, body: bytes = b"", **values: Any) -> Message:
        """The last word on this call: done or failed."""
        number = self.send(name, body, **values)
        while (message := self.receive()).values["event"] == "released":
            pass
        assert message.values["id"] == number
        return message

    def send(self, name: str, body: bytes = b"", **values: Any) -> int:
        """Returns the call's number."""
        number = next(self._numbers)
        self._channel.send(Message({"id": number, "call": name, "values": values}, body))
        return number

    def receive(self) -> Message:
        """What comes next, but for beats of the heart."""
        while (message := self._channel.receive()).values["event"] == "beat":
            pass
        return message

    def values(self, name: str, body: bytes = b"", **values: Any) -> dict[str, Any]:
        """Of a call that must succeed."""
        message = self.call(name, body, **values)
        assert message.values["event"] == "done", message.values
        return dict(message.values["values"])

    def failure(self, name: str, **values: Any) -> tuple[str, str | None, str]:
        message = self.call(name, **values)
        assert message.values["event"] == "failed", message.values
        error = decode_error(message.values["error"])
        return error.category, error.code, str(error)

    def save(self, archive: str, kind: str = "weights", **values: Any) -> dict[str, Any]:
        return {"run_id": "run", "archive": archive, "kind": kind, "metadata": {}, "ttl_seconds": None} | values


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def client(tmp_path: Path, store: Path) -> Iterator[Client]:
    """Of a worker with one run."""
    directory = make_directory(tmp_path / "base", "qwen3", tied=False)
    config = WorkerConfig(models={"tiny": str(directory)}, store=str(store), device="cpu")
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    channel, theirs_channel = BlockingChannel(ours), BlockingChannel(theirs)
    is_orphaned = threading.Event()
    worker = threading.Thread(target=WorkerService(config, theirs_channel, on_orphaned=is_orphaned.set).run)
    worker.start()
    try:
        assert channel.receive().values["event"] == "ready"
        client = Client(channel)
        client.values("open_run", run_id="run", base_model="tiny", spec=SPEC)
        yield client
    finally:
        channel.send(encode_call(0, StopCall()))
        worker.join(60)
        ours.shutdown(socket.SHUT_RDWR)
        for reader in [thread for thread in threading.enumerate() if thread.name == "channel"]:
            reader.join(60)
        channel.close()
        theirs_channel.close()
    assert not worker.is_alive()
    assert is_orphaned.is_set()


@pytest.mark.parametrize("forward_only", [False, True])
def test_a_pass_counts_its_tokens(client: Client, forward_only: bool) -> None:
    assert client.values("forward_backward", pass_body(7, 5, forward_only=forward_only), run_id="run")["tokens"] == 12


def test_a_sample_counts_what_it_read_and_what_it_drew(client: Client) -> None:
    body = sample_body([3, 4, 5], num_samples=2, max_tokens=4)

    values = client.values("sample", body, key="a", base_model="tiny", archive=None, seed=1)

    assert values["prompt_tokens"] == 3 and 2 <= values["tokens"] <= 8


def test_an_export_is_saved_and_encrypted(client: Client, store: Path) -> None:
    identity = pyrage.x25519.Identity.generate()

    plain = client.values("save", **client.save("plain", "external_weights", recipients=[]))
    sealed = client.values("save", **client.save("sealed", "external_weights", recipients=[str(identity.to_public())]))

    assert plain["size_bytes"] == (store / "plain.tar").stat().st_size
    assert sealed["size_bytes"] == (store / "sealed.tar").stat().st_size
    with Archive.open(store / "plain.tar") as expected, Archive.open(store / "sealed.tar") as archive:
        name = "adapter_model.safetensors"
        assert pyrage.decrypt(archive.read(f"{name}.age"), [identity]) == expected.read(name)
        assert archive.manifest.kind == expected.manifest.kind == "external_weights"


def test_recipients_that_are_none_are_told_and_nothing_is_saved(client: Client, store: Path) -> None:
    category, code, error = client.failure("save", **client.save("one", "external_weights", recipients=["bob"]))

    assert (category, code) == ("user", None) and "age_encryption_recipients[0], 'bob'" in error
    assert not (store / "one.tar").exists()


def test_only_exports_are_encrypted(client: Client) -> None:
    key = str(pyrage.x25519.Identity.generate().to_public())

    category, _, error = client.failure("save", **client.save("one", "weights", recipients=[key]))

    assert category == "user" and "only external weights can be encrypted" in error


def test_a_save_without_room_is_the_users_to_mend(client: Client, store: Path) -> None:
    size = client.values("save", **client.save("one"))["size_bytes"]

    allowance = client.failure("save", **client.save("two", allowance_bytes=size - 1, reserve_bytes=0))
    reserve = client.failure("save", **client.save("two", allowance_bytes=None, reserve_bytes=1 << 60))

    assert allowance[:2] == reserve[:2] == ("user", "no_room")
    assert f"needs {size} bytes and its allowance is {size - 1}" in allowance[2]
    assert f"needs {size} bytes" in reserve[2] and f"{1 << 60} are reserved" in reserve[2]
    client.values("save", **client.save("two", allowance_bytes=size, reserve_bytes=0))


def test_what_cannot_be_loaded_says_why_in_a_word(client: Client, store: Path) -> None:
    client.values("save", **client.save("one"))
    content = bytearray((store / "one.tar").read_bytes())
    content[len(content) // 2] ^= 1
    (store / "one.tar").write_bytes(content)

    damaged = client.failure("load", run_id="run", archive="one", with_optimizer=True)
    missing = client.failure("load", run_id="run", archive="gone", with_optimizer=True)
    unknown = client.failure("forward_backward", run_id="nobody")

    assert damaged[:2] == ("server", "damaged")
    assert missing[:2] == ("user", "missing")
    assert unknown[1] is None


def sample(client: Client, archive: str) -> dict[str, Any]:
    return client.values("sample", sample_body([3, 4]), key="a", base_model="tiny", archive=archive, seed=1)


@pytest.fixture
def no_weights_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may leave the memory does."""
    monkeypatch.setattr("chockstone.backends.worker.service._WEIGHTS_CACHE_BYTES", 0)


@pytest.mark.usefixtures("no_weights_cache")
def test_weights_to_sample_from_stay_in_memory_when_the_disk_is_not_theirs(store: Path, client: Client) -> None:
    for archive in ("a/ephemeral", "b/ephemeral"):
        client.values("snapshot", run_id="run", archive=archive, reserve_bytes=2**60)
    client.failure("save", **client.save("c", reserve_bytes=2**60))  # so that both have been refused by now

    assert list(store.rglob("*.tar")) == []
    for archive in ("a/ephemeral", "b/ephemeral"):
        assert sample(client, archive)["tokens"] == 2


def step(client: Client) -> None:
    client.values("forward_backward", pass_body(7, 5), run_id="run")
    client.values("optim_step", run_id="run", params={})


def test_a_save_under_a_name_that_is_taken_replaces_what_is_there(client: Client, store: Path) -> None:
    client.values("save", **client.save("one"))
    step(client)

    client.values("save", **client.save("one"))

    with Archive.open(store / "one.tar") as archive:
        assert archive.manifest.step == 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before it is set."""
    may_write = threading.Event()
    write = SaveJob.run

    def wait_and_write(job: SaveJob, **options: Any) -> Any:
        assert may_write.wait(60)
        return write(job, **options)

    monkeypatch.setattr(SaveJob, "run", wait_and_write)
    yield may_write
    may_write.set()


def test_a_recovery_archive_is_copied_when_earlier_snapshots_are_on_disk(
    disk: threading.Event, client: Client, store: Path
) -> None:
    client.values("snapshot", run_id="run", archive="a/sampler")
    plain = client.send("save", **client.save("plain"))
    released = client.receive()
    recovery = client.send("save", **client.save("recovery", "recovery"))
    for _ in range(10):  # others are answered while it waits, and nothing comes from it
        another = client.send("close_run", run_id="another")
        assert client.receive().values["id"] == another

    disk.set()
    events = [client.receive().values for _ in range(3)]

    assert released.values["id"] == plain
    ended = [event for event in events if event["id"] == recovery]
    assert [event["event"] for event in ended] == ["released", "done"]
    assert ended[-1]["values"]["seconds"] > 0
    with Archive.open(store / "recovery.tar") as archive:
        assert archive.manifest.kind == "recovery"


def test_no_recovery_archive_is_newer_than_weights_that_are_in_memory_only(client: Client) -> None:
    client.values("snapshot", run_id="run", archive="a/sampler", reserve_bytes=2**60)

    category, code, error = client.failure("save", **client.save("recovery", "recovery"))
    client.values("forget", archive="a/sampler")
    client.values("save", **client.save("recovery", "recovery"))

    assert (category, code) == ("user", "no_room")
    assert "in memory only" in error and re.search(r"needs \d+ bytes", error)


def identity(path: Path) -> tuple[int, int, int]:
    """Changes when the file is written or replaced, and not when it is read."""
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def test_a_snapshot_that_is_on_disk_already_is_not_written_again(client: Client, store: Path) -> None:
    client.values("snapshot", run_id="run", archive="sampler")
    client.values("save", **client.save("recovery", "recovery"))  # so that it has been written by now
    before = identity(store / "sampler.tar")

    client.values("snapshot", run_id="run", archive="sampler")
    client.values("save", **client.save("recovery", "recovery"))

    assert identity(store / "sampler.tar") == before
    assert sample(client, "sampler")["tokens"] == 2


def test_a_snapshot_that_is_damaged_on_disk_is_written_again(client: Client, store: Path) -> None:
    client.values("snapshot", run_id="run", archive="sampler")
    client.values("save", **client.save("recovery", "recovery"))
    good = (store / "sampler.tar").read_bytes()
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 1
    (store / "sampler.tar").write_bytes(damaged)

    client.values("snapshot", run_id="run", archive="sampler")
    client.values("save", **client.save("recovery", "recovery"))

    with Archive.open(store / "sampler.tar") as archive:
        verify_archive(archive)


def test_a_pass_and_a_step_say_how_long_they_took(client: Client) -> None:
    assert client.values("forward_backward", pass_body(7), run_id="run")["seconds"] > 0
    assert client.values("optim_step", run_id="run", params={})["seconds"] > 0


def test_a_worker_beats_from_the_moment_it_is_ready(client: Client) -> None:
    message = client._channel.receive()

    assert message.values["event"] == "beat"
    assert not message.values["busy"]
    assert message.values["turns"] > 0
