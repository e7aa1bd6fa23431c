"""The worker, spoken to over its channel."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyrage
import pytest

from chockstone.backends.channel import BlockingChannel, Message
from chockstone.backends.local import WorkerConfig
from chockstone.backends.worker import Worker
from chockstone.checkpoints import Archive
from chockstone.wire.pass_request import pass_from_json

from .saving import make_directory

SPEC = {"rank": 4, "seed": 1}


class Client:
    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    def call(self, word: str, body: bytes = b"", **values: Any) -> Message:
        """The last word on this call: done or failed."""
        number = next(self._numbers)
        self._channel.send(Message({"id": number, "word": word, "values": values}, body))
        while (message := self._channel.receive()).values["event"] == "released":
            pass
        assert message.values["id"] == number
        return message

    def values(self, word: str, body: bytes = b"", **values: Any) -> dict[str, Any]:
        """Of a call that must succeed."""
        message = self.call(word, body, **values)
        assert message.values["event"] == "done", message.values
        return dict(message.values["values"])

    def failure(self, word: str, **values: Any) -> tuple[str, str | None, str]:
        message = self.call(word, **values)
        assert message.values["event"] == "failed", message.values
        return message.values["category"], message.values["code"], message.values["error"]

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
    worker = threading.Thread(target=Worker(config, theirs_channel).run)
    worker.start()
    try:
        assert channel.receive().values["event"] == "ready"
        client = Client(channel)
        client.values("open_run", run_id="run", base_model="tiny", spec=SPEC)
        yield client
    finally:
        channel.send(Message({"word": "stop"}))
        worker.join(60)
        ours.shutdown(socket.SHUT_RDWR)
        for reader in [thread for thread in threading.enumerate() if thread.name == "channel"]:
            reader.join(60)
        channel.close()
        theirs_channel.close()
    assert not worker.is_alive()


def pass_body(*lengths: int, forward_only: bool = False) -> bytes:
    data = [
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": list(range(length))}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": list(range(length)), "dtype": "int64", "shape": [length]},
                "weights": {"data": [1.0] * length, "dtype": "float32", "shape": [length]},
            },
        }
        for length in lengths
    ]
    key = "forward_input" if forward_only else "forward_backward_input"
    return pass_from_json({"model_id": "run", "seq_id": 1, key: {"data": data, "loss_fn": "cross_entropy"}})


@pytest.mark.parametrize("forward_only", [False, True])
def test_a_pass_counts_its_tokens(client: Client, forward_only: bool) -> None:
    assert client.values("pass", pass_body(7, 5, forward_only=forward_only), run_id="run") == {"tokens": 12}


def test_a_sample_counts_what_it_read_and_what_it_drew(client: Client) -> None:
    request = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [3, 4, 5]}]},
        "num_samples": 2,
        "sampling_params": {"max_tokens": 4, "stop": [96]},
    }

    values = client.values("sample", orjson.dumps(request), key="a", base_model="tiny", archive=None, seed=1)

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
    unknown = client.failure("pass", run_id="nobody")

    assert damaged[:2] == ("server", "damaged")
    assert missing[:2] == ("user", "missing")
    assert unknown[1] is None


@pytest.fixture
def no_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may leave the memory does."""
    monkeypatch.setattr("chockstone.backends.worker._SHELF_BYTES", 0)


@pytest.mark.usefixtures("no_shelf")
def test_weights_to_sample_from_stay_in_memory_when_the_disk_is_not_theirs(store: Path, client: Client) -> None:
    request = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [3, 4]}]}, "sampling_params": {"max_tokens": 2}}

    for archive in ("a/ephemeral", "b/ephemeral"):
        client.values("snapshot", run_id="run", archive=archive, reserve_bytes=2**60)
    client.failure("save", **client.save("c", reserve_bytes=2**60))  # so that both have been refused by now

    assert list(store.rglob("*.tar")) == []
    for archive in ("a/ephemeral", "b/ephemeral"):
        values = client.values("sample", orjson.dumps(request), key=archive, base_model="tiny", archive=archive, seed=1)
        assert values["tokens"] == 2
