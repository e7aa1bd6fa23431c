"""Parts of an archive on their way to S3."""

from __future__ import annotations

import logging

import pytest

from chockstone.checkpoints.errors import (
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.s3_connection import S3Connection
from chockstone.checkpoints.stores.s3_upload import PART_BYTES
from support.checkpoints.s3_stores import (
    BROKEN,
    BUSY,
    LARGE,
    SIZES,
    names,
    uploads,
)
from support.loopback_s3 import Proxy


def test_a_part_that_failed_fails_the_save_and_abort_discards_the_rest(
    store: ObjectStore, connection: S3Connection, proxy: Proxy
) -> None:
    proxy.inject(BROKEN, method="PUT", containing="partNumber=2")
    sink = store.begin("new", LARGE)

    with pytest.raises(StoreUnreachable, match="500"):
        sink.write_at(0, memoryview(bytes(LARGE)))
    with pytest.raises(StoreError, match="never written"):
        sink.commit(overwrite=False)
    sink.abort()

    assert names(store) == []
    assert uploads(connection, store) == []


def test_an_abort_that_cannot_reach_s3_says_so_in_the_log_only(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    sink = store.begin("new", LARGE)
    proxy.inject(BUSY, method="DELETE")

    with caplog.at_level(logging.WARNING):
        sink.abort()
        sink.abort()

    proxy.heal()
    assert [record.levelname for record in caplog.records if "new.tar" in record.getMessage()] == ["WARNING"]
    assert len(uploads(connection, store)) == 1
    assert len(store.sweep()) == 1


def test_parts_leave_memory_as_soon_as_they_are_full(store: ObjectStore, proxy: Proxy) -> None:
    sink = store.begin("long", 3 * PART_BYTES)
    sink.write_at(PAGE, memoryview(bytes(2 * PART_BYTES)))

    uploaded = [request for request in proxy.requests if "partNumber" in request]
    sink.abort()

    assert len(uploaded) == 1
    assert "partNumber=2" in uploaded[0]


@SIZES
def test_more_bytes_than_planned_are_refused(store: ObjectStore, size: int) -> None:
    sink = store.begin("new", size)

    with pytest.raises(StoreError, match=f"planned with {size} bytes"):
        sink.write_at(size, memoryview(bytes(PAGE)))
    sink.abort()


@SIZES
def test_an_archive_with_a_gap_is_not_committed(store: ObjectStore, size: int) -> None:
    sink = store.begin("gap", size)
    sink.write_at(PAGE, memoryview(bytes(size - PAGE)))

    with pytest.raises(StoreError, match="never written"):
        sink.commit(overwrite=False)
    sink.abort()

    assert names(store) == []
