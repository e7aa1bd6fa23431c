"""Reading an object that is short, replaced or deleted."""

from __future__ import annotations

import pytest

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.object_store import ObjectStore
from support.checkpoints.s3_stores import (
    LARGE,
    SMALL,
    load,
    save,
)
from support.loopback_s3 import Fault, Kind, Proxy


def test_bodies_that_stay_short_are_an_error_and_never_short_data(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old", LARGE)
    source = store.open("old")
    proxy.inject(Fault(Kind.SHORT_BODY), method="GET")

    with pytest.raises(StoreUnreachable, match="broke off"):
        source.read_into(0, memoryview(bytearray(LARGE)))


def test_an_archive_that_is_replaced_while_it_is_read_is_an_error(store: ObjectStore) -> None:
    save(store, "old", fill=b"a")
    source = store.open("old")
    save(store, "old", fill=b"b", overwrite=True)
    target = bytearray(PAGE)

    with pytest.raises(StoreError, match="replaced while it was being read; open it again") as caught:
        source.read_into(0, memoryview(target))

    assert not isinstance(caught.value, CheckpointMissing)
    assert target == bytes(PAGE)
    assert load(store, "old") == b"b" * SMALL


def test_an_archive_that_is_deleted_while_it_is_read_is_missing(store: ObjectStore) -> None:
    save(store, "old")
    source = store.open("old")
    store.delete("old")

    with pytest.raises(CheckpointMissing, match="deleted while it was being read"):
        source.read_into(0, memoryview(bytearray(PAGE)))


def test_a_source_cannot_be_mapped(store: ObjectStore) -> None:
    save(store, "old")

    assert store.open("old").map() is None
    assert store.free_bytes() is None
