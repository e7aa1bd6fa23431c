"""Credentials, region and endpoint of S3, right and wrong."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import (
    StoreDenied,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.bucket import RetryPolicy
from chockstone.checkpoints.stores.object_store import ObjectStore
from support.checkpoints.s3_stores import (
    DENIED,
    EACH,
    OPERATIONS,
    save,
)
from support.loopback_s3 import ENVIRONMENT, Fault, Kind, Proxy, set_environment


def test_a_server_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    store = ObjectStore.from_url("s3://bucket/prefix", retry_policy=RetryPolicy(attempts=1))

    with pytest.raises(StoreUnreachable, match=r"s3://bucket/prefix/old\.tar: no connection could be made"):
        store.stat("old")


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (Fault(Kind.STATUS, 400, "ExpiredToken"), "renew"),
        (Fault(Kind.STATUS, 403, "InvalidAccessKeyId"), "check key, secret and endpoint"),
        (Fault(Kind.STATUS, 403, "RequestTimeTooSkewed"), "clock"),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else "",
)
def test_credentials_that_do_not_work_are_a_refusal_with_advice(
    store: ObjectStore, proxy: Proxy, fault: Fault, advice: str
) -> None:
    for method in ("GET", "HEAD"):  # of which the latter has no body to say why
        proxy.inject(fault, method=method)

    for ask in (lambda: list(store.entries()), lambda: store.stat("old")):
        with pytest.raises(StoreDenied, match=advice):
            ask()


def test_a_bucket_in_another_region_is_said_to_be(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    source = store.open("old")
    proxy.inject(Fault(Kind.STATUS, 301, "PermanentRedirect"), method="GET")

    with pytest.raises(StoreUnreachable, match="set AWS_REGION"):
        source.read_into(0, memoryview(bytearray(PAGE)))


@EACH
def test_no_error_shows_credentials(store: ObjectStore, proxy: Proxy, operation: str) -> None:
    save(store, "old")
    method, act, _ = OPERATIONS[operation]
    proxy.inject(DENIED, method=method)

    with pytest.raises(StoreDenied) as caught:
        act(store)

    shown = "".join(traceback.format_exception(caught.value))
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in shown
    assert ENVIRONMENT["AWS_ACCESS_KEY_ID"] not in shown


def test_without_credentials_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    with pytest.raises(StoreDenied, match="AWS_SECRET_ACCESS_KEY"):
        ObjectStore.from_url("s3://bucket")


def test_credentials_that_nobody_gives_out_are_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    configuration = tmp_path / "config"
    configuration.write_text("[default]\ncredential_process = false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(configuration))

    with pytest.raises(StoreDenied, match="CredentialRetrievalError"):
        ObjectStore.from_url("s3://bucket")


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("AWS_PROFILE", "nobody", r"nobody.*correct the AWS configuration"),
        ("AWS_ENDPOINT_URL_S3", "user:hunter2", "correct AWS_ENDPOINT_URL_S3"),
    ],
    ids=["profile", "endpoint"],
)
def test_a_wrong_aws_configuration_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, advice: str
) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)

    with pytest.raises(StoreError, match=advice) as caught:
        ObjectStore.from_url("s3://bucket")

    assert "hunter2" not in str(caught.value)
