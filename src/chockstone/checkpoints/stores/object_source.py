"""Object sources: ranges of one object through obstore. A read fails if the object was replaced since it was opened."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from chockstone.checkpoints.errors import CheckpointMissing, StoreError, TruncatedArchive
from chockstone.checkpoints.stores.bucket import ObjectFacts, RequestFailed, RetryPolicy, explained, traffic

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

RANGE_BYTES: Final = 8 * 1024**2  # a request this long ends in time on slow lines too
_WINDOW_BYTES: Final = 256 * 1024  # smaller reads share one request
_WINDOWS: Final = 4
_FIRST_PAUSE: Final = 0.1  # in seconds, before a request is sent again
_LONGEST_PAUSE: Final = 2.0
_SMALL_BYTES: Final = 1024**2  # objects that are read in one request, whatever of them is asked for

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS_OF: Final[dict[type[Exception], int]] = {
    FileNotFoundError: 404,
    AlreadyExistsError: 412,
    PreconditionError: 412,
    PermissionDeniedError: 403,
    UnauthenticatedError: 401,
}
_SILENT: Final = {
    "kind: Timeout,": "it did not answer in time",
    "dns error": "its host name is not known",
    "kind: Connect,": "no connection could be made",
    "kind: Interrupted,": "the connection broke off",
}


class ObjectSource:
    def __init__(
        self,
        store: ObjectStore,
        facts: ObjectFacts,
        *,
        url: str,
        permission: str,
        retry_policy: RetryPolicy,
        repeats: bool = False,
    ) -> None:
        """``repeats``: retry failed requests here; otherwise the client of ``store`` does it."""
        self._store = store
        self._facts = facts
        self._url = url
        self._permission = permission
        self._attempts = retry_policy.attempts
        self._retry_policy = retry_policy if repeats else None
        self._windows: dict[int, memoryview] = {}  # those read last
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        return self._facts.size

    @property
    def run_bytes(self) -> int:
        return RANGE_BYTES

    @property
    def readers(self) -> int:
        return 8  # a request waits far longer than its bytes take

    def map(self) -> memoryview | None:
        return None

    def descriptor(self) -> int | None:
        return None

    def read_into(self, offset: int, target: memoryview) -> None:
        """``CheckpointMissing`` when the object was deleted since, ``StoreError`` when it was replaced."""
        place = f"{self._url}/{self._facts.key}"
        if offset + len(target) > self.size:
            raise TruncatedArchive(f"{place} ends while it is being read", where=self.size)
        with explained(f"cannot read {place}", bucket=self._url, permission=self._permission):
            if len(target) < _WINDOW_BYTES or self.size <= _SMALL_BYTES:
                self._copy(target, offset, place)
                return
            for start in range(0, len(target), RANGE_BYTES):
                piece = target[start : start + RANGE_BYTES]
                self._fill(piece, offset + start, place)

    def _copy(self, target: memoryview, offset: int, place: str) -> None:
        """Serve small reads from cached windows: headers of members are close together, and requests are slow."""
        width = self.size if self.size <= _SMALL_BYTES else _WINDOW_BYTES
        while len(target):
            index, start = divmod(offset, width)
            piece = self._window(index, width, place)[start : start + len(target)]
            target[: len(piece)] = piece
            target = target[len(piece) :]
            offset += len(piece)

    def _window(self, index: int, width: int, place: str) -> memoryview:
        if (known := self._windows.get(index)) is not None:
            return known
        content = memoryview(bytearray(min(width, self.size - index * width)))
        self._fill(content, index * width, place)
        with self._lock:
            while len(self._windows) >= _WINDOWS:
                del self._windows[next(iter(self._windows))]
            self._windows[index] = content
        return content

    def _fill(self, target: memoryview, offset: int, place: str) -> None:
        for _ in range(self._attempts):
            content = self._fetch(offset, offset + len(target), place)
            if len(content) == len(target):
                target[:] = content
                return
        raise RequestFailed(f"it sent {len(content)} bytes where {len(target)} were asked for")

    def _fetch(self, start: int, end: int, place: str) -> memoryview:
        """Send a request, with the retries of the policy where the client of the store has none."""
        if self._retry_policy is None:
            return self._fetch_once(start, end, place)
        retries = retry_config(self._retry_policy)
        ends = time.monotonic() + retries["retry_timeout"].total_seconds()
        pause = _FIRST_PAUSE
        for left in reversed(range(retries["max_retries"] + 1)):
            try:
                return self._fetch_once(start, end, place)
            except RequestFailed as failure:
                if not left or not failure.is_outage or time.monotonic() + pause > ends:
                    raise
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311  # so that not all come back at once
            pause = min(2 * pause, _LONGEST_PAUSE)
            traffic.repeated += 1
        raise AssertionError("the last one returns or raises")

    def _fetch_once(self, start: int, end: int, place: str) -> memoryview:
        traffic.sent += 1
        options: GetOptions = {"range": (start, end)}
        if self._facts.etag is not None:
            options["if_match"] = self._facts.etag
        try:
            with obstore_requests():
                return memoryview(obstore.get(self._store, self._facts.key, options=options).bytes())
        except RequestFailed as failure:
            if failure.status == 412:
                raise StoreError(f"{place} was replaced while it was being read; open it again") from failure
            if failure.status == 404 and failure.code != "NoSuchBucket":
                raise CheckpointMissing(f"{place} was deleted while it was being read") from failure
            raise

    def close(self) -> None:
        self._windows.clear()


@contextmanager
def obstore_requests() -> Iterator[None]:
    """Turn obstore's exceptions into ``RequestFailed``, without its text: that can quote a credential provider."""
    try:
        yield
    except InvalidPathError as error:
        raise RequestFailed("an object there has a key with '//' or '..' in it; remove it") from error
    except (BaseError, FileNotFoundError) as error:
        raise recognise_obstore_error(error) from error


def recognise_obstore_error(error: Exception) -> RequestFailed:
    """The facts of a failed request. obstore gives status, S3 code and cause of most errors in its text alone."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else _STATUS_OF.get(type(error))
    code = found[1] if (found := _CODE.search(text)) else ""
    if "credential provider" in text:
        return RequestFailed("the credentials could not be renewed", status=401, code="ExpiredToken")
    if status is not None:
        return RequestFailed(f"the store answered {status} {code}".rstrip(), status=status, code=code)
    if "BareRedirect" in text:
        return RequestFailed("the store answered with a redirect", status=301)
    silent = (summary for mark, summary in _SILENT.items() if mark in text)
    return RequestFailed(next(silent, f"the request broke off with {type(error).__name__}"))


def retry_config(retry_policy: RetryPolicy) -> RetryConfig:
    longest = (
        retry_policy.attempts * (retry_policy.connect_seconds + retry_policy.silence_seconds)
        + retry_policy.outage_seconds
    )
    return {
        "max_retries": retry_policy.attempts
        - 1
        + round(retry_policy.outage_seconds),  # the last ones two seconds apart
        "retry_timeout": timedelta(seconds=longest),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }


def client_config(retry_policy: RetryPolicy, *, request_seconds: float, allow_http: bool) -> ClientConfig:
    """``request_seconds`` is the limit for a whole request, also while bytes still arrive."""
    return {
        "connect_timeout": timedelta(seconds=retry_policy.connect_seconds),
        "read_timeout": timedelta(seconds=retry_policy.silence_seconds),
        "timeout": timedelta(seconds=request_seconds),
        "allow_http": allow_http,
    }
