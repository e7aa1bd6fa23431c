"""Buckets of Google Cloud Storage and Azure, through obstore alone.

obstore has no multipart upload that fails when the key is taken, so an archive is gathered in
memory and sent in one conditional request. Nothing is ever left half uploaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Self

import obstore
from obstore.store import AzureStore, GCSStore

from chockstone.checkpoints.bucket import (
    ObjectFacts,
    Patience,
    RequestFailed,
    Unfinished,
    exists_already,
    explained,
)
from chockstone.checkpoints.errors import CheckpointMissing, StoreError
from chockstone.checkpoints.object_source import ObjectSource, client_config, obstore_requests, retry_config
from chockstone.checkpoints.store import Sink, Source

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

MAX_BYTES: Final = 4 * 1024**3
_REQUEST_SECONDS: Final = 3600.0  # an archive of MAX_BYTES at 10 Mbit/s


class PlainBucket:
    def __init__(self, store: ObjectStore, url: str, *, patience: Patience) -> None:
        self._store = store
        self._url = url
        self._patience = patience

    @classmethod
    def connect(cls, scheme: str, bucket: str, *, patience: Patience) -> Self:
        """Credentials are the ones obstore finds in the environment, as for the vendors' own tools."""
        client = client_config(patience, request_seconds=_REQUEST_SECONDS, allow_http=False)
        retry = retry_config(patience)
        store: ObjectStore
        with explained(f"cannot use {scheme}://{bucket}", bucket=bucket, permission="access"), obstore_requests():
            if scheme == "gs":
                store = GCSStore(bucket, client_options=client, retry_config=retry)
            else:
                store = AzureStore(bucket, client_options=client, retry_config=retry)
        return cls(store, f"{scheme}://{bucket}", patience=patience)

    @property
    def url(self) -> str:
        return self._url

    def begin(self, key: str, size: int) -> Sink:
        if size > MAX_BYTES:
            raise StoreError(
                f"an archive of {size} bytes is too large for {self.url}/{key}: only file:// and s3:// take more "
                f"than {MAX_BYTES}; save there, or split the state"
            )
        return _PlainSink(self, key, size)

    def source(self, facts: ObjectFacts) -> Source:
        return ObjectSource(
            self._store, facts, url=self.url, permission="the right to read objects", patience=self._patience
        )

    def find(self, key: str) -> ObjectFacts | None:
        try:
            with self._asking(f"cannot look at {self.url}/{key}", "the right to read objects"):
                return _facts(obstore.head(self._store, key))
        except _Absent:
            return None

    def below(self, key: str) -> Iterator[ObjectFacts]:
        with self._asking(f"cannot list {self.url}/{key}", "the right to list objects"):
            for batch in obstore.list(self._store, key or None, chunk_size=1000):
                yield from map(_facts, batch)

    def delete(self, key: str) -> bool:
        try:
            with self._asking(f"cannot delete {self.url}/{key}", "the right to delete objects"):
                obstore.delete(self._store, key)
        except _Absent:
            return False
        return True

    def copy(self, facts: ObjectFacts, target: str, *, overwrite: bool) -> None:
        try:
            with self._asking(f"cannot copy {self.url}/{facts.key} to {target}", "the right to write objects"):
                obstore.copy(self._store, facts.key, target, overwrite=overwrite)
        except _Absent:
            raise CheckpointMissing(f"{self.url}/{facts.key} was deleted while it was being copied") from None
        except _Taken:
            raise exists_already(f"{self.url}/{target}") from None

    def put(self, key: str, content: bytearray, *, overwrite: bool) -> None:
        mode = "overwrite" if overwrite else "create"
        try:
            with self._asking(f"cannot write {self.url}/{key}", "the right to write objects"):
                obstore.put(self._store, key, content, mode=mode, use_multipart=False)
        except _Taken:
            raise exists_already(f"{self.url}/{key}") from None

    def unfinished(self, key: str) -> list[Unfinished]:
        return []

    def uploaded_bytes(self, upload: Unfinished) -> int:
        return 0

    def discard(self, upload: Unfinished) -> bool:
        return False
