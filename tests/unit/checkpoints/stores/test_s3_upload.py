"""Commits of multipart uploads whose answers are lost, late or refused."""

from __future__ import annotations

import pytest

from chockstone.checkpoints.errors import (
    CheckpointExists,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.s3_connection import S3Connection
from chockstone.checkpoints.stores.s3_upload import MAX_PARTS, PART_BYTES, part_bytes
from support.checkpoints.s3_stores import (
    BUSY,
    LARGE,
    SIZES,
    SMALL,
    load,
    names,
    save,
    uploads,
)
from support.loopback_s3 import Fault, Kind, Proxy


@SIZES
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_commit_whose_answer_was_lost_is_a_commit(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, size: int, overwrite: bool
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.LOST_ANSWER), method=method, containing=containing)

    save(store, "new", size, overwrite=overwrite)

    assert load(store, "new") == b"x" * size
    assert uploads(connection, store) == []


@SIZES
def test_a_commit_that_was_retried_after_a_lost_answer_is_not_taken_for_another(
    store: ObjectStore, proxy: Proxy, size: int
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.LOST_ANSWER), method=method, containing=containing, times=1)
    proxy.inject(Fault(Kind.STATUS, 412, "PreconditionFailed"), method=method, containing=containing, times=1)

    save(store, "new", size)

    assert load(store, "new") == b"x" * size


@SIZES
def test_when_nobody_can_say_what_became_of_a_commit_the_error_says_so(
    store: ObjectStore, proxy: Proxy, size: int
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.LOST_ANSWER), method=method, containing=containing)
    proxy.inject(BUSY, method="HEAD")

    with pytest.raises(StoreUnreachable, match="cannot say whether"):
        save(store, "new", size)


@pytest.mark.parametrize("status", [403, 500])
def test_a_commit_that_failed_leaves_no_upload(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, status: int
) -> None:
    proxy.inject(Fault(Kind.STATUS, status, "Injected"), method="POST", containing="uploadId")

    with pytest.raises(StoreError, match=rf"cannot commit .*new\.tar: the store answered {status}"):
        save(store, "new", LARGE)

    assert names(store) == []
    assert uploads(connection, store) == []


def test_losing_a_race_leaves_no_upload(store: ObjectStore, connection: S3Connection) -> None:
    save(store, "taken")

    with pytest.raises(CheckpointExists, match=r"taken\.tar already; choose another name"):
        save(store, "taken", LARGE)

    assert uploads(connection, store) == []


@SIZES
def test_a_conflict_over_a_name_that_is_free_again_asks_to_save_again(
    store: ObjectStore, proxy: Proxy, size: int
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.STATUS, 409, "ConditionalRequestConflict"), method=method, containing=containing)

    with pytest.raises(StoreUnreachable, match="save it again"):
        save(store, "new", size)


@pytest.mark.parametrize("size", [1, PART_BYTES, MAX_PARTS * PART_BYTES, MAX_PARTS * PART_BYTES + 1, 5 * 10**12])
def test_no_archive_needs_more_parts_than_s3_takes(size: int) -> None:
    length = part_bytes(size)

    assert length >= PART_BYTES
    assert length % PAGE == 0
    assert -(-size // length) <= MAX_PARTS


def test_an_upload_that_a_lifecycle_rule_discarded_is_named(store: ObjectStore, proxy: Proxy) -> None:
    proxy.inject(Fault(Kind.STATUS, 404, "NoSuchUpload"), method="POST", containing="uploadId")

    with pytest.raises(StoreError, match="lifecycle rule"):
        save(store, "new", LARGE)
