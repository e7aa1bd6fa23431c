"""A store or catalog that cannot be used ends the start of a server before its worker exists."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from chockstone.api.config import ServerConfig
from chockstone.api.serving import startup
from chockstone.api.serving.startup import CannotStart, claimed, prepared, require_keys
from chockstone.engine.ownership.keys_record import KeysRecord
from support.api.server_configs import default_config
from support.loopback_s3 import set_environment
from support.stores import BUCKET, S3Place, place_in, shared_endpoint

LOAD_STARTUP = """
import sys
from chockstone.api.serving.startup import claimed, prepared
print(*{"asyncio", "fastapi", "numpy", "sqlalchemy", "torch"} & set(sys.modules))
"""


class Spawned(Exception):
    """It came as far as to start a worker."""


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(*_: object, **__: object) -> None:
        raise Spawned

    monkeypatch.setattr(startup, "spawn_worker", spawn)
    monkeypatch.setattr(startup, "configure_process", lambda _: None)  # which sets up logging for a process


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> S3Place:
    place = place_in(shared_endpoint())
    set_environment(monkeypatch, place.endpoint)
    return place


def test_the_worker_does_not_wait_for_libraries_that_only_the_server_needs() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOAD_STARTUP], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []


def start(data: Path, store: str | None) -> str:
    """Why it does not start; else Spawned."""
    config = default_config(data, port=0, store=store)
    with pytest.raises(CannotStart) as refusal, claimed(config) as claim, prepared(config, claim):
        pass
    return str(refusal.value)


def test_a_bucket_that_can_be_used_is_claimed_first(place: S3Place, tmp_path: Path) -> None:
    with pytest.raises(Spawned):
        start(tmp_path / "data", place.url)

    assert "belongs to another server" in start(tmp_path / "other", place.url)
    assert f"start it with --store {place.url}" in start(tmp_path / "data", None)
    with pytest.raises(Spawned):
        start(tmp_path / "data", f"{place.url}/")


def test_there_is_no_bucket(place: S3Place, tmp_path: Path) -> None:
    assert "there is no bucket 's3://not-there'; create it" in start(tmp_path, "s3://not-there/prefix")


def test_the_url_is_none(place: S3Place, tmp_path: Path) -> None:
    assert "put credentials, endpoint and region into the environment" in start(tmp_path, f"s3://me@{BUCKET}/prefix")


def test_there_are_no_credentials(place: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    assert "there are no valid AWS credentials" in start(tmp_path, place.url)


def test_nobody_answers(place: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")

    assert "no connection could be made; check the endpoint" in start(tmp_path, place.url)


def test_a_directory_elsewhere_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "the store cannot be used" in start(tmp_path / "data", str(tmp_path / "file" / "store"))


def test_the_catalog_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "catalog.json").write_text('{"database": "postgresql://db/chockstone"}')

    assert "is 'postgresql://db/chockstone': give that with --database" in start(tmp_path, None)


@pytest.mark.parametrize(
    ("host", "has_keys", "is_refused"),
    [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("LocalHost", False, False)],
)
def test_a_door_that_others_can_reach_is_not_left_open(host: str, has_keys: bool, is_refused: bool) -> None:
    with pytest.raises(CannotStart, match="no user has a key") if is_refused else nullcontext():
        require_keys(default_config(Path(), host=host), has_keys=has_keys)


def test_a_public_url_needs_a_key() -> None:
    config = default_config(Path(), public_url="https://models.example.com")

    with pytest.raises(CannotStart, match="'https://models.example.com' .--public-url., and no user has a key"):
        require_keys(config, has_keys=False)

    require_keys(config, has_keys=True)


def test_a_directory_whose_server_had_keys_needs_one(tmp_path: Path) -> None:
    config, record = default_config(tmp_path), KeysRecord(tmp_path)
    require_keys(config, has_keys=False, keys=record)

    record.write()
    record.write()  # again is once

    require_keys(config, has_keys=True, keys=record)
    with pytest.raises(CannotStart, match="had API keys before, and has none now") as refusal:
        require_keys(config, has_keys=False, keys=record)
    assert str(record.path) in str(refusal.value)
    record.path.unlink()
    require_keys(config, has_keys=False, keys=record)


def test_a_directory_that_is_made_is_private_and_an_older_one_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Spawned):
        start(tmp_path / "new", None)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "new", *(tmp_path / "new").rglob("*"))} == {0}
    assert not caplog.messages

    older = tmp_path / "older"
    older.mkdir()
    older.chmod(0o755)
    with pytest.raises(Spawned):
        start(older, None)
    [said] = caplog.messages
    assert f"chmod -R go-rwx {older}" in said


def tick(monkeypatch: pytest.MonkeyPatch, on_tick: Callable[[float], None] = lambda _: None) -> list[float]:
    """Each look at the clock is a second later than the one before; returns the seconds so far."""
    ticks: list[float] = []

    def monotonic() -> float:
        ticks.append(float(len(ticks)))
        on_tick(ticks[-1])
        return ticks[-1]

    monkeypatch.setattr(startup, "time", SimpleNamespace(monotonic=monotonic))
    return ticks


def refused(config: ServerConfig) -> list[str]:
    with pytest.raises(CannotStart) as refusal, claimed(config):
        pass
    return str(refusal.value).splitlines()


def test_a_second_server_is_refused_at_once_with_both_problems_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "_LOCK_SECONDS", 3600.0)  # a test that waits for it does not end
    tick(monkeypatch)
    with claimed(default_config(tmp_path / "data", port=0)) as claim:
        port = claim.sock.getsockname()[1]
        both = refused(default_config(tmp_path / "data", port=port))
        of_directory = refused(default_config(tmp_path / "data", port=0))
        of_port = refused(default_config(tmp_path / "other", port=port))

    in_use = (
        f"another server uses the data directory '{tmp_path}/data'. It is process {os.getpid()} and listens on "
        f"127.0.0.1:{port}. Stop it with `kill {os.getpid()}`, or choose another directory with --data"
    )
    taken = (
        f"cannot listen on 127.0.0.1:{port}: another program listens there; stop it, or choose another port with "
        "--port (0 picks a free one)"
    )
    assert (both, of_directory, of_port) == ([in_use, taken], [in_use], [taken])
    assert not [record.message for record in caplog.records if record.name.startswith("chockstone")]


def test_a_server_that_stops_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = default_config(tmp_path, port=0)
    stack = ExitStack()
    claim = stack.enter_context(claimed(config))
    claim.note_stopping()

    class Ends(logging.Handler):
        """The first server ends as soon as the second one says that it waits."""

        def emit(self, record: logging.LogRecord) -> None:
            stack.close()

    handler = Ends()
    startup.log.addHandler(handler)
    try:
        with claimed(config) as second:
            assert second.lock >= 0
    finally:
        startup.log.removeHandler(handler)

    assert caplog.messages == [f"waiting for the server that uses {tmp_path} to end"]


def test_a_running_server_is_refused_after_three_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = default_config(tmp_path, port=0)
    with claimed(config):
        ticks = tick(monkeypatch)
        refused(config)

    assert ticks == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_server_that_records_late_that_it_stops_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = default_config(tmp_path, port=0)
    stack = ExitStack()
    claim = stack.enter_context(claimed(config))

    def stop(seconds: float) -> None:
        if seconds == 2.0:  # the event loop was busy until now
            claim.note_stopping()
        elif seconds == 5.0:
            stack.close()

    tick(monkeypatch, stop)
    with claimed(config) as second:
        assert second.lock >= 0


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("192.0.2.1", 0, "this machine does not have that address; choose another with --host"),
        ("::2", 0, "this machine does not have that address; choose another with --host"),
    ],
)
def test_an_address_that_cannot_be_listened_on_says_why(host: str, port: int, message: str) -> None:
    with pytest.raises(CannotStart, match=message):
        startup.bind(host, port)


def test_each_replica_has_a_configuration_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "visible_gpus", lambda _: ["0", "1"])

    def gpus(replicas: int) -> list[str | None]:
        return [each.gpu for each in startup.worker_configs(default_config(tmp_path, replicas=replicas))]

    assert (gpus(1), gpus(0), gpus(3)) == ([None], ["0", "1"], ["0", "1", "0"])
