"""Buckets of Google Cloud Storage and Azure, through obstore alone.

obstore has no multipart upload that fails when the key is taken, so an archive is gathered in
memory and sent in one conditional request. Nothing is ever left half uploaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import obstore
from obstore.store import AzureStore, GCSStore

from chockstone.checkpoints.errors import CheckpointMissing, StoreError
from chockstone.checkpoints.stores.bucket import (
    InMemorySink,
    ObjectFacts,
    RequestFailed,
    RetryPolicy,
    exists_already,
    explained,
    read_range,
)
from chockstone.checkpoints.stores.object_source import ObjectSource, client_config, obstore_requests, retry_config
from chockstone.checkpoints.stores.shared_writes import cannot_share
from chockstone.checkpoints.stores.store import ArchiveSource, PartialWrite, SharedSink, Sink

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ObjectStore

MAX_BYTES: Final = 4 * 1024**3
_REQUEST_SECONDS: Final = 3600.0  # an archive of MAX_BYTES at 10 Mbit/s
_READ: Final = "the right to read objects"
_WRITE: Final = "the right to write objects"


class ObstoreBucket:
    def __init__(self, store: ObjectStore, url: str, *, retry_policy: RetryPolicy) -> None:
        self._store = store
        self._url = url
        self._retry_policy = retry_policy

    @classmethod
    def connect(cls, scheme: str, bucket: str, *, retry_policy: RetryPolicy) -> Self:
        """Credentials are the ones obstore finds in the environment, as for the vendors' own tools."""
        client = client_config(retry_policy, request_seconds=_REQUEST_SECONDS, allow_http=False)
        retry = retry_config(retry_policy)
        store: ObjectStore
        with explained(f"cannot use {scheme}://{bucket}", bucket=bucket, permission="access"), obstore_requests():
            if scheme == "gs":
                store = GCSStore(bucket, client_options=client, retry_config=retry)
            else:
                store = AzureStore(bucket, client_options=client, retry_config=retry)
        return cls(store, f"{scheme}://{bucket}", retry_policy=retry_policy)

    @property
    def url(self) -> str:
        return self._url

    def begin(self, key: str, size: int) -> Sink:
        self._check_size(key, size)
        return InMemorySink(f"{self.url}/{key}", size, partial(self._put, key), refusal=cannot_share(self.url))

    def join(self, *_: object) -> SharedSink:
        raise cannot_share(self.url)

    def unit_bytes(self, _size: int) -> int:
        raise cannot_share(self.url)

    def _check_size(self, key: str, size: int) -> None:
        if size > MAX_BYTES:
            raise StoreError(
                f"an archive of {size} bytes is too large for {self.url}/{key}: only file:// and s3:// take more "
                f"than {MAX_BYTES}; save there, or split the state"
            )

    def source(self, facts: ObjectFacts) -> ArchiveSource:
        return ObjectSource(self._store, facts, url=self.url, permission=_READ, retry_policy=self._retry_policy)

    def find(self, key: str) -> ObjectFacts | None:
        with self._explained("look at", key, _READ):
            try:
                with obstore_requests():
                    return _facts(obstore.head(self._store, key))
            except RequestFailed as failure:
                if failure.is_absent:
                    return None
                raise

    def below(self, key: str) -> Iterator[ObjectFacts]:
        with self._explained("list", key, "the right to list objects"), obstore_requests():
            for batch in obstore.list(self._store, key or None, chunk_size=1000):
                yield from map(_facts, batch)

    def delete(self, key: str, _found: ObjectFacts | None = None) -> bool:
        with self._explained("delete", key, "the right to delete objects"):
            try:
                with obstore_requests():
                    obstore.delete(self._store, key)
            except RequestFailed as failure:
                if failure.is_absent:
                    return False
                raise
        return True

    def copy(self, facts: ObjectFacts, target: str, *, overwrite: bool) -> None:
        with self._explained("write", target, _WRITE):
            try:
                with obstore_requests():
                    obstore.copy(self._store, facts.key, target, overwrite=overwrite)
            except RequestFailed as failure:
                if failure.is_absent:
                    raise CheckpointMissing(f"{self.url}/{facts.key} was deleted while it was being copied") from None
                if failure.status == 412:
                    raise exists_already(f"{self.url}/{target}") from None
                raise

    def presign(self, *_key: object, **_how: object) -> str | None:
        return None

    def copy_range(self, facts: ObjectFacts, start: int, size: int, target: str) -> None:
        """Through this process: neither store copies a part of an object under a condition on all of it."""
        self._check_size(target, size)
        self._put(target, read_range(self.source(facts), start, size), overwrite=True)

    def _put(self, key: str, content: bytearray, overwrite: bool) -> None:
        with self._explained("write", key, _WRITE):
            try:
                with obstore_requests():
                    mode: PutMode = "overwrite" if overwrite else "create"
                    obstore.put(self._store, key, content, mode=mode, use_multipart=False)
            except RequestFailed as failure:
                if failure.status == 412:
                    raise exists_already(f"{self.url}/{key}") from None
                raise

    def sweep(self, *_key: object, **_options: object) -> list[PartialWrite]:
        return []

    def _explained(self, verb: str, key: str, permission: str) -> AbstractContextManager[None]:
        return explained(f"cannot {verb} {self.url}/{key}", bucket=self.url, permission=permission)


def _facts(meta: ObjectMeta) -> ObjectFacts:
    return ObjectFacts(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"])
