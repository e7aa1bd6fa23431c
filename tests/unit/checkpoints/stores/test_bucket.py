"""Failed requests become the StoreError that says what to do."""

from __future__ import annotations

import pytest

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    StoreDenied,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.s3_bucket import S3Bucket
from chockstone.checkpoints.stores.s3_connection import S3Connection
from support.checkpoints.s3_stores import (
    BROKEN,
    BUCKET,
    BUSY,
    EACH,
    OPERATIONS,
    SMALL,
    load,
    names,
    save,
)
from support.loopback_s3 import Fault, Kind, Proxy


@EACH
@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_place_and_the_permission_it_takes(
    store: ObjectStore, proxy: Proxy, operation: str, status: int
) -> None:
    save(store, "old")
    method, act, permission = OPERATIONS[operation]
    proxy.inject(Fault(Kind.STATUS, status, "AccessDenied"), method=method)

    with pytest.raises(StoreDenied) as caught:
        act(store)

    assert f"answered {status}" in str(caught.value)
    assert permission in str(caught.value)
    assert f"s3://{BUCKET}" in str(caught.value)


@EACH
@pytest.mark.parametrize(
    ("fault", "cause"),
    [(BROKEN, "500"), (BUSY, "503"), (Fault(Kind.RESET), "broke off"), (Fault(Kind.STALL), "did not answer in time")],
    ids=["500", "503", "reset", "stall"],
)
def test_a_store_in_trouble_is_unreachable_and_loses_nothing(
    store: ObjectStore, impatient: S3Connection, proxy: Proxy, operation: str, fault: Fault, cause: str
) -> None:
    save(store, "old")
    hasty = ObjectStore(S3Bucket(impatient), store.url.removeprefix(f"s3://{BUCKET}/"))
    method, act, _ = OPERATIONS[operation]
    proxy.inject(fault, method=method)

    with pytest.raises(StoreUnreachable) as caught:
        act(hasty)

    assert cause in str(caught.value)
    assert "try again" in str(caught.value)
    proxy.heal()
    assert names(store) == ["old"]
    assert load(store, "old") == b"x" * SMALL


@EACH
@pytest.mark.parametrize(
    "fault",
    [BROKEN, BUSY, Fault(Kind.RESET), Fault(Kind.SHORT_BODY)],
    ids=["500", "503", "reset", "short"],
)
def test_a_fault_that_passes_is_not_noticed(store: ObjectStore, proxy: Proxy, operation: str, fault: Fault) -> None:
    save(store, "old")
    method, act, _ = OPERATIONS[operation]
    proxy.inject(fault, method=method, times=1)

    act(store)


@EACH
def test_a_bucket_that_is_not_there_is_no_missing_checkpoint(proxy: Proxy, operation: str) -> None:
    store = ObjectStore.from_url("s3://nobody-made-this")

    with pytest.raises(StoreError, match="no bucket 's3://nobody-made-this'; create it") as caught:
        OPERATIONS[operation][1](store)

    assert not isinstance(caught.value, CheckpointMissing)
