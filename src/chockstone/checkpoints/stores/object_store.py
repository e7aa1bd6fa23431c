"""A store in a bucket: the object ``<prefix>/<name>.tar``, on S3, Google Cloud Storage or Azure.

An object appears whole when its upload is completed, so nothing unfinished has a name. What an
interrupted upload left is not listed but is paid for: ``sweep`` discards it. That a name is taken
once rests on the server: it must heed If-None-Match on writes, as AWS does since 2024.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Self
from urllib.parse import urlsplit

from chockstone.checkpoints.errors import CheckpointMissing, InvalidName, StoreError
from chockstone.checkpoints.stores.bucket import Bucket, ObjectFacts, RetryPolicy, S3Access, read_range
from chockstone.checkpoints.stores.store import (
    SUFFIX,
    ArchiveSource,
    PartialWrite,
    SharedSink,
    Sink,
    StoreEntry,
    check_name,
)
from chockstone.extras import ExtraMissing, require

GRACE_SECONDS: Final = 24 * 3600.0
_RETRY_POLICY: Final = RetryPolicy()
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")


class ObjectStore:
    def __init__(self, bucket: Bucket, prefix: str = "", *, grace_seconds: float = GRACE_SECONDS) -> None:
        """``grace_seconds``: the age below which ``sweep`` counts an upload as in progress.

        No lock on S3 dies with its writer, so only age tells an orphan. It must exceed the longest save.
        """
        self._bucket = bucket
        self._prefix = prefix
        self._grace_seconds = grace_seconds

    @classmethod
    def from_url(
        cls, url: str, *, grace_seconds: float = GRACE_SECONDS, retry_policy: RetryPolicy = _RETRY_POLICY
    ) -> Self:
        """``s3://bucket/prefix``, ``gs://…`` or ``az://…``. Finds credentials; asks the bucket nothing yet."""
        scheme, bucket, prefix = split_url(url)
        return cls(connect(scheme, bucket, retry_policy), prefix, grace_seconds=grace_seconds)

    @property
    def url(self) -> str:
        return f"{self._bucket.url}/{self._prefix}".rstrip("/")

    def begin(self, name: str, size: int) -> Sink:
        return self._bucket.begin(self._key(name), size)

    def join(self, name: str, size: int, ticket: str) -> SharedSink:
        return self._bucket.join(self._key(name), size, ticket)

    def unit_bytes(self, size: int) -> int:
        return self._bucket.unit_bytes(size)

    def open(self, name: str) -> ArchiveSource:
        """Open the object as it is now. Once it is replaced or deleted, reads fail and never mix two objects."""
        return self._bucket.source(self._found(name))

    def entries(self, prefix: str = "") -> Iterator[StoreEntry]:
        if prefix:
            check_name(prefix)
        found = list(self._bucket.below("/".join(part for part in (self._prefix, prefix) if part)))
        if prefix and (itself := self._bucket.find(self._key(prefix))) is not None:
            found.append(itself)
        named = ((self._name(facts.key), facts) for facts in found)
        ours = [StoreEntry(name, facts.size, facts.modified_at) for name, facts in named if name is not None]
        return iter(sorted(ours, key=lambda entry: entry.name))

    def stat(self, name: str) -> StoreEntry:
        facts = self._found(name)
        return StoreEntry(name, facts.size, facts.modified_at)

    def delete(self, name: str) -> bool:
        return self._bucket.delete(self._key(name))

    def copy(self, name: str, target: str, *, overwrite: bool = False) -> None:
        target_key = self._key(target)
        self._bucket.copy(self._found(name), target_key, overwrite=overwrite)

    def presign(self, name: str, *, method: str, seconds: int, filename: str, content_type: str) -> str | None:
        """A presigned URL of the archive, valid for ``seconds``; None where the store has none.

        ``filename`` and ``content_type`` are what the answer will say, in plain characters. ``method``: GET or HEAD.
        """
        return self._bucket.presign(
            self._key(name), method=method, seconds=seconds, filename=filename, content_type=content_type
        )

    def read_note(self, name: str, *, limit: int) -> bytes | None:
        """The content of the note ``<prefix>/<name>``, which is never listed with archives; None if there is none."""
        facts = self._bucket.find(self._beside(name))
        if facts is None:
            return None
        return bytes(read_range(self._bucket.source(facts), 0, min(facts.size, limit)))

    def write_note(self, name: str, content: bytes, *, overwrite: bool = False) -> None:
        """Write a note, durable on return. ``CheckpointExists`` if there is one and it may not be replaced."""
        sink = self._bucket.begin(self._beside(name), len(content))
        sink.write_at(0, memoryview(content))
        sink.commit(overwrite=overwrite)

    def free_bytes(self) -> int | None:
        return None

    def sweep(self, *, min_age_seconds: float = 0.0, dry_run: bool = False) -> list[PartialWrite]:
        """Spares uploads younger than the grace period, whatever ``min_age_seconds`` says."""
        age_seconds = max(min_age_seconds, self._grace_seconds)
        return self._bucket.sweep(
            self._prefix,
            is_ours=lambda key: self._name(key) is not None,
            min_age_seconds=age_seconds,
            dry_run=dry_run,
        )

    def _found(self, name: str) -> ObjectFacts:
        facts = self._bucket.find(self._key(name))
        if facts is None:
            raise CheckpointMissing(f"checkpoint {name!r} is not in {self.url}")
        return facts

    def _key(self, name: str) -> str:
        check_name(name)
        return f"{self._prefix}/{name}{SUFFIX}" if self._prefix else f"{name}{SUFFIX}"

    def _beside(self, name: str) -> str:
        check_name(name)
        return f"{self._prefix}/{name}" if self._prefix else name

    def _name(self, key: str) -> str | None:
        """The name behind a key, or None for objects that are not ours."""
        start = f"{self._prefix}/" if self._prefix else ""
        if not (key.startswith(start) and key.endswith(SUFFIX)):
            return None
        name = key[len(start) : -len(SUFFIX)]
        try:
            check_name(name)
        except InvalidName:
            return None
        return name


def split_url(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and prefix. Raises InvalidName."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    if parts.query or parts.fragment or "@" in parts.netloc:
        # not quoted back: this is where people put credentials
        raise InvalidName(
            f"a store URL holds a bucket and a prefix only: write {parts.scheme}://bucket/prefix and put "
            "credentials, endpoint and region into the environment"
        )
    if parts.scheme not in {"s3", "gs", "az"} or not _BUCKET.match(parts.netloc):
        raise InvalidName(f"{url!r} is not an object store: write s3://bucket/prefix, gs://… or az://…")
    if prefix:
        check_name(prefix)
    return parts.scheme, parts.netloc, prefix


def connect(scheme: str, bucket: str, retry_policy: RetryPolicy, access: S3Access | None = None) -> Bucket:
    """``access`` is for s3:// only; without it, and for other stores, the environment has the credentials."""
    try:
        require(scheme, f"the store {scheme}://{bucket}")
    except ExtraMissing as error:
        raise StoreError(str(error)) from error
    if scheme == "s3":
        from chockstone.checkpoints.stores.s3_bucket import S3Bucket
        from chockstone.checkpoints.stores.s3_connection import S3Connection

        return S3Bucket(S3Connection.connect(bucket, retry_policy=retry_policy, access=access))
    from chockstone.checkpoints.stores.obstore_bucket import ObstoreBucket

    return ObstoreBucket.connect(scheme, bucket, retry_policy=retry_policy)
