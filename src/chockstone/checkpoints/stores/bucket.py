"""Buckets: objects by key, as a protocol that hides the differences between S3 and other object stores.

A failed request of any client becomes ``RequestFailed`` where it was sent, and a ``StoreError`` in ``explained``. No
exception of a client library leaves this room.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from chockstone.checkpoints.errors import CheckpointExists, StoreDenied, StoreError, StoreFull, StoreUnreachable
from chockstone.checkpoints.stores.shared_writes import PartReceipt, Ticket, incomplete, too_long
from chockstone.checkpoints.stores.store import ArchiveSource, PartialWrite, SharedSink, Sink

_EXPIRED: Final = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_UNKNOWN_KEYS: Final = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId"}
_OTHER_REGION: Final = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long one request is retried: by default about two minutes, with three timeouts of 30 s.

    ``outage_seconds``: retry for so much longer while the store does not answer or answers 5xx.
    """

    attempts: int = 3
    connect_seconds: float = 5.0
    silence_seconds: float = 30.0
    outage_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class S3Access:
    """Endpoint, region and credentials of S3, for callers that do not use the AWS environment."""

    endpoint_url: str | None = None
    key_id: str | None = None
    secret: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    key: str
    size: int
    modified_at: datetime
    etag: str | None


class Bucket(Protocol):
    @property
    def url(self) -> str: ...

    def begin(self, key: str, size: int) -> Sink: ...

    def join(self, key: str, size: int, ticket: str) -> SharedSink: ...

    def unit_bytes(self, size: int) -> int: ...

    def source(self, facts: ObjectFacts) -> ArchiveSource:
        """The object as ``find`` saw it, and no later one of that key."""

    def find(self, key: str) -> ObjectFacts | None: ...

    def below(self, key: str) -> Iterator[ObjectFacts]:
        """Objects whose key starts with ``key`` and a slash; all of them for an empty key."""

    def delete(self, key: str, found: ObjectFacts | None = None) -> bool:
        """``found``: what a listing or ``find`` saw there, which saves the question where the store has conditions."""

    def copy(self, facts: ObjectFacts, target: str, *, overwrite: bool) -> None: ...

    def presign(self, key: str, *, method: str, seconds: int, filename: str, content_type: str) -> str | None:
        """A presigned URL that gives access to the object for ``seconds``; None where the store has none."""

    def copy_range(self, facts: ObjectFacts, start: int, size: int, target: str) -> None:
        """Make a part of the object as ``find`` saw it the object ``target``, whatever that was before."""

    def sweep(
        self, key: str, *, is_ours: Callable[[str], bool], min_age_seconds: float, dry_run: bool
    ) -> list[PartialWrite]:
        """Discard unfinished uploads below ``key`` whose keys ``is_ours`` accepts."""


class Traffic(threading.local):
    """Requests that this thread sent to stores."""

    sent = 0
    repeated = 0  # those of them that were sent again


traffic: Final = Traffic()


class RequestFailed(Exception):
    """A request without success. ``status`` is None when no answer came."""

    def __init__(self, summary: str, *, status: int | None = None, code: str = "", was_retried: bool = False) -> None:
        super().__init__(summary)
        self.summary = summary
        self.status = status
        self.code = code
        self.was_retried = was_retried

    @property
    def is_absent(self) -> bool:
        return self.status == 404 and self.code != "NoSuchBucket"

    @property
    def is_outage(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status in {429, 500, 502, 503, 504}

    @property
    def is_definite(self) -> bool:
        """Whether the store said that it did nothing."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in {404, 408, 409, 412}


@contextmanager
def explained(doing: str, *, bucket: str, permission: str) -> Iterator[None]:
    """Turn a failed request into the StoreError that says what to do about it."""
    try:
        yield
    except RequestFailed as failure:
        raise explain(failure, doing, bucket=bucket, permission=permission) from failure


def explain(failure: RequestFailed, doing: str, *, bucket: str, permission: str) -> StoreError:
    said = f"{doing}: {failure.summary}"
    if failure.code == "NoSuchBucket":
        return StoreError(f"{doing}: there is no bucket {bucket!r}; create it, or correct the URL")
    if failure.code == "NoSuchUpload":
        return StoreError(
            f"{doing}: its owner, a sweep or a lifecycle rule of the bucket discarded the upload; save it again"
        )
    if failure.code in _EXPIRED:
        return StoreDenied(f"{said}; the credentials have expired, renew them")
    if failure.code in _UNKNOWN_KEYS:
        return StoreDenied(f"{said}; these credentials are not known there, check key, secret and endpoint")
    if failure.code == "RequestTimeTooSkewed":
        return StoreDenied(f"{said}; set the clock of this machine")
    if failure.code in _OTHER_REGION or failure.status == 301:
        return StoreUnreachable(f"{said}; the bucket {bucket!r} is in another region, set AWS_REGION to it")
    if failure.status in {401, 403}:
        return StoreDenied(f"{said}; these credentials need {permission} on bucket {bucket!r}")
    if failure.status == 507:
        return StoreFull(f"{said}; free space in the store, or let `chockstone checkpoints gc` do it")
    return StoreUnreachable(f"{said}; check the endpoint and the network, then try again")


def exists_already(place: str) -> CheckpointExists:
    return CheckpointExists(
        f"there is a checkpoint at {place} already; choose another name, delete it first, or ask for overwrite"
    )


class InMemorySink:
    """An archive kept in memory until ``commit`` hands it to ``send`` with whether to overwrite.

    Its owner writes all of it. Other processes may join a small one as ``NonWritingSink``.
    """

    def __init__(
        self, place: str, size: int, send: Callable[[bytearray, bool], None], *, refusal: StoreError | None = None
    ) -> None:
        """``refusal``: what ``share`` raises."""
        self._place = place
        self._content = bytearray(size)
        self._missing = size
        self._lock = threading.Lock()
        self._send = send
        self._refusal = refusal

    def write_at(self, offset: int, data: memoryview) -> None:
        if offset + len(data) > len(self._content):
            raise too_long(self._place, len(self._content))
        self._content[offset : offset + len(data)] = data
        with self._lock:
            self._missing -= len(data)

    def share(self) -> str:
        if self._refusal is not None:
            raise self._refusal
        return Ticket(self._place, len(self._content), place="").encode()

    def settle(self, receipts: Sequence[str]) -> None:
        for text in receipts:
            if PartReceipt.decode(text, archive=self._place, size=len(self._content), place="").ranges:
                raise StoreError(
                    f"cannot commit {self._place}: another process says that it wrote to it; save it again"
                )

    def commit(self, *, overwrite: bool) -> None:
        if self._missing:
            raise incomplete(self._place, self._missing)
        self._send(self._content, overwrite)
        self.abort()

    def abort(self) -> None:
        self._content = bytearray()


class NonWritingSink:
    """The part of a process that writes nothing, in an archive that its owner sends in one request."""

    def __init__(self, place: str, size: int, ticket: str) -> None:
        self._place = place
        Ticket.decode(ticket, archive=place, size=size)

    def write_at(self, *_: object) -> None:
        raise StoreError(f"cannot write {self._place}: it goes out in one request, so that its owner writes all of it")

    def finish(self) -> str:
        return PartReceipt(place="", ranges=()).encode()

    def close(self) -> None:
        pass


def read_range(source: ArchiveSource, start: int, size: int) -> bytearray:
    content = bytearray(size)
    if size:
        source.read_into(start, memoryview(content))
    return content
