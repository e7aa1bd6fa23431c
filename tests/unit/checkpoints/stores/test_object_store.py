"""Stores in buckets: keys of others, URLs and packages."""

from __future__ import annotations

import sys

import pytest

from chockstone.checkpoints.errors import (
    InvalidName,
    StoreError,
)
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.s3_connection import S3Connection
from chockstone.checkpoints.stores.store import open_store
from support.checkpoints.s3_stores import (
    BUCKET,
    names,
    save,
)
from support.loopback_s3 import Proxy, make_bucket


def test_objects_of_others_are_not_listed_and_do_not_hinder(store: ObjectStore, connection: S3Connection) -> None:
    save(store, "run/ours")
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    for key in ["notes.txt", "a b.tar", ".hidden.tar", "run//twice.tar", "run/../up.tar", "run/", "é.tar", ".tar"]:
        connection.request("put_object", Key=f"{prefix}/{key}", Body=b"theirs")
    connection.request("put_object", Key=f"{prefix}0/theirs.tar", Body=b"theirs")

    assert names(store) == ["run/ours"]
    assert [entry.name for entry in store.entries("run")] == ["run/ours"]


def test_a_store_may_be_the_whole_bucket(server: str, proxy: Proxy) -> None:
    make_bucket(server, "whole-bucket")
    store = ObjectStore.from_url("s3://whole-bucket/")

    save(store, "run/step-1")

    assert names(store) == ["run/step-1"]
    assert store.url == "s3://whole-bucket"
    assert store.sweep() == []


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///prefix", "s3://a", "s3://bucket/../up", "s3://bucket/a b", "s3://bucket:80/x", "ftp://bucket"],
)
def test_urls_that_name_no_store_are_refused(url: str) -> None:
    with pytest.raises(InvalidName):
        ObjectStore.from_url(url)


@pytest.mark.parametrize("url", ["s3://key:hunter2@bucket/x", "s3://bucket/x?secret=hunter2", "s3://bucket#hunter2"])
def test_urls_with_credentials_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(InvalidName, match="environment") as caught:
        open_store(url)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "package"), [("s3", "boto3"), ("s3", "obstore"), ("gs", "obstore"), ("az", "obstore")]
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, scheme: str, package: str
) -> None:
    for module in ["s3_bucket", "s3_connection", "s3_upload", "obstore_bucket", "object_source"]:
        monkeypatch.delitem(sys.modules, f"chockstone.checkpoints.stores.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(StoreError, match=rf"{package}.* pip install 'chockstone\[{scheme}\]'"):
        ObjectStore.from_url(f"{scheme}://bucket/prefix")
