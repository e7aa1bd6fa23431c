"""Small archives on the loopback S3 server, and what each operation of a store asks of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.s3_connection import S3Connection
from chockstone.checkpoints.stores.s3_upload import PART_BYTES
from support.loopback_s3 import Fault, Kind

BUCKET = "faulty"


SMALL = 4 * PAGE


LARGE = PART_BYTES + PAGE


SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


DENIED = Fault(Kind.STATUS, 403, "AccessDenied")


BROKEN = Fault(Kind.STATUS, 500, "InternalError")


BUSY = Fault(Kind.STATUS, 503, "SlowDown")


def save(store: ObjectStore, name: str, size: int = SMALL, *, fill: bytes = b"x", overwrite: bool = False) -> None:
    sink = store.begin(name, size)
    try:
        sink.write_at(0, memoryview(fill * size))
        sink.commit(overwrite=overwrite)
    finally:
        sink.abort()


def load(store: ObjectStore, name: str) -> bytes:
    source = store.open(name)
    content = bytearray(source.size)
    source.read_into(0, memoryview(content))
    return bytes(content)


def names(store: ObjectStore) -> list[str]:
    return [entry.name for entry in store.entries()]


def uploads(connection: S3Connection, store: ObjectStore) -> list[str]:
    """Keys of unfinished uploads, asked for without the store."""
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    pages = connection.pages("list_multipart_uploads", Prefix=prefix)
    return [upload["Key"] for page in pages for upload in page.get("Uploads", [])]


Operation = Callable[[ObjectStore], object]


OPERATIONS: dict[str, tuple[str, Operation, str]] = {
    "begin": ("POST", lambda store: store.begin("new", LARGE), "s3:PutObject"),
    "write": ("PUT", lambda store: save(store, "new", LARGE), "s3:PutObject"),
    "put": ("PUT", lambda store: save(store, "new", SMALL), "s3:PutObject"),
    "open": ("HEAD", lambda store: store.open("old"), "s3:GetObject"),
    "read": ("GET", lambda store: load(store, "old"), "s3:GetObject"),
    "stat": ("HEAD", lambda store: store.stat("old"), "s3:ListBucket"),
    "entries": ("GET", lambda store: list(store.entries()), "s3:ListBucket"),
    "delete": ("DELETE", lambda store: store.delete("old"), "s3:DeleteObject"),
    "copy": ("PUT", lambda store: store.copy("old", "new"), "s3:PutObject"),
    "sweep": ("GET", lambda store: store.sweep(), "s3:ListBucketMultipartUploads"),
}


EACH = pytest.mark.parametrize("operation", OPERATIONS)
