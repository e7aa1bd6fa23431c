"""Reading an object that is short, replaced or deleted."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, PreconditionError

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.object_source import recognise_obstore_error
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


@pytest.mark.parametrize(
    ("error", "status", "code", "summary"),
    [
        (
            GenericError("Client error with status code: 403 Forbidden: <Code>AccessDenied</Code>"),
            403,
            "AccessDenied",
            "the store answered 403 AccessDenied",
        ),
        (PreconditionError("Object at location x already exists"), 412, "", "the store answered 412"),
        (GenericError("credential provider raised"), 401, "ExpiredToken", "the credentials could not be renewed"),
        (
            GenericError("Received redirect without LOCATION: BareRedirect"),
            301,
            "",
            "the store answered with a redirect",
        ),
        (GenericError("HTTP error: kind: Timeout, source: …"), None, "", "it did not answer in time"),
        (GenericError("HTTP error: kind: Connect, dns error"), None, "", "its host name is not known"),
        (GenericError("something new"), None, "", "the request broke off with GenericError"),
    ],
)
def test_errors_of_obstore_are_recognised_by_their_text(
    error: Exception, status: int | None, code: str, summary: str
) -> None:
    failure = recognise_obstore_error(error)

    assert (failure.status, failure.code, failure.summary) == (status, code, summary)
