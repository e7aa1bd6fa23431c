"""Deletes, copies and sweeps in an S3 bucket."""

from __future__ import annotations

import pytest

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.stores import s3_bucket
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.s3_bucket import S3Bucket
from chockstone.checkpoints.stores.s3_connection import S3Connection
from support.checkpoints.s3_stores import (
    BROKEN,
    BUCKET,
    load,
    names,
    save,
    uploads,
)
from support.loopback_s3 import Fault, Kind, Proxy


def test_a_delete_whose_answer_was_lost_counts_as_done(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    proxy.inject(Fault(Kind.LOST_ANSWER), method="DELETE", times=1)

    assert store.delete("old") is True
    assert names(store) == []


def test_a_delete_of_what_was_replaced_meanwhile_deletes_the_replacement(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    proxy.inject(Fault(Kind.STATUS, 412, "PreconditionFailed"), method="DELETE", times=1)

    assert store.delete("old") is True
    assert names(store) == []


def test_a_server_without_conditional_deletes_still_deletes(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    proxy.inject(Fault(Kind.STATUS, 501, "NotImplemented"), method="DELETE", times=1)

    assert store.delete("old") is True
    assert names(store) == []


def test_a_copy_of_several_ranges_is_whole(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "COPY_RANGE_BYTES", 5 * 1024**2)  # the least S3 takes
    save(store, "old", 11 * 1024**2)

    store.copy("old", "new")

    copied = [request for request in proxy.requests if "new.tar" in request and "partNumber" in request]
    assert len(copied) == 3
    assert load(store, "new") == load(store, "old")
    assert uploads(connection, store) == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(Kind.STATUS, 404, "NoSuchKey"), CheckpointMissing),
        (Fault(Kind.STATUS, 412, "PreconditionFailed"), StoreError),
        (BROKEN, StoreUnreachable),
    ],
    ids=["deleted", "replaced", "broken"],
)
def test_a_copy_that_fails_leaves_nothing(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, fault: Fault, error: type[StoreError]
) -> None:
    save(store, "old")
    proxy.inject(fault, method="PUT", containing="partNumber")

    with pytest.raises(error, match=r"old\.tar"):
        store.copy("old", "new")

    assert names(store) == ["old"]
    assert uploads(connection, store) == []


def test_sweep_spares_what_is_younger_than_the_grace_period_or_not_ours(
    store: ObjectStore, connection: S3Connection
) -> None:
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    for key in [f"{prefix}/run/orphan.tar", f"{prefix}/video.mp4", f"{prefix}0/orphan.tar"]:
        connection.request("create_multipart_upload", Key=key)
    century_seconds = 100 * 365 * 86400.0  # moto says that every upload began in 2010
    patient = ObjectStore(S3Bucket(connection), prefix, grace_seconds=century_seconds)

    by_grace, by_age = patient.sweep(), store.sweep(min_age_seconds=century_seconds)
    swept = store.sweep()

    assert by_grace == by_age == []
    assert [partial.place.partition("?")[0] for partial in swept] == [f"{store.url}/run/orphan.tar"]
    assert swept[0].age_seconds > 86400
    assert uploads(connection, store) == [f"{prefix}/video.mp4", f"{prefix}0/orphan.tar"]


def test_a_dry_sweep_counts_bytes_and_removes_nothing(store: ObjectStore, connection: S3Connection) -> None:
    key = f"{store.url.removeprefix(f's3://{BUCKET}/')}/orphan.tar"
    upload = connection.request("create_multipart_upload", Key=key)["UploadId"]
    connection.request("upload_part", Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 1000)

    swept = store.sweep(dry_run=True)

    assert [partial.size for partial in swept] == [1000]
    assert uploads(connection, store) == [key]


def test_an_upload_that_ended_during_a_sweep_is_not_counted(
    store: ObjectStore, connection: S3Connection, proxy: Proxy
) -> None:
    key = f"{store.url.removeprefix(f's3://{BUCKET}/')}/orphan.tar"
    connection.request("create_multipart_upload", Key=key)
    proxy.inject(Fault(Kind.STATUS, 404, "NoSuchUpload"), method="DELETE")

    assert store.sweep() == []
