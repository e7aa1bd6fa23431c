"""Google Cloud Storage and Azure."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from chockstone.checkpoints.errors import (
    StoreError,
)
from chockstone.checkpoints.stores.bucket import RetryPolicy
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.obstore_bucket import MAX_BYTES, ObstoreBucket


def test_an_archive_too_large_for_one_request_is_refused_before_it_is_gathered() -> None:
    store = ObjectStore(ObstoreBucket(MemoryStore(), "gs://bucket", retry_policy=RetryPolicy()))

    with pytest.raises(StoreError, match=f"{MAX_BYTES}; save there"):
        store.begin("huge", MAX_BYTES + 1)


def test_stores_on_google_and_azure_are_made_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")

    assert ObjectStore.from_url("gs://bucket/prefix").url == "gs://bucket/prefix"
    assert ObjectStore.from_url("az://bucket/prefix").url == "az://bucket/prefix"
