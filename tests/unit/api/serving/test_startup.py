"""A store or catalog that cannot be used ends the start of a server before its worker exists."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from chockstone.api.serving import startup
from chockstone.api.serving.startup import CannotStart, prepared, require_keys
from chockstone.engine.ownership.keys_record import KeysRecord
from support.api.server_configs import default_config
from support.loopback_s3 import set_environment
from support.stores import BUCKET, S3Place, place_in, shared_endpoint


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


def start(data: Path, store: str | None) -> str:
    """Why it does not start; else Spawned."""
    with pytest.raises(CannotStart) as refused, prepared(default_config(data, port=0, store=store)):
        pass
    return str(refused.value)


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
