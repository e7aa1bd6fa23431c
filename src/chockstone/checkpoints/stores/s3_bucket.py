"""Buckets of S3: what boto3 does on them, since obstore cannot upload in parts under a condition, list or
abort uploads, or list a bucket in which one foreign key is not a clean path. Ranges are read by obstore.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Final

from chockstone.checkpoints.errors import CheckpointMissing, StoreError, StoreUnreachable
from chockstone.checkpoints.stores.bucket import (
    InMemorySink,
    NonWritingSink,
    ObjectFacts,
    RequestFailed,
    explained,
    read_range,
)
from chockstone.checkpoints.stores.object_source import ObjectSource
from chockstone.checkpoints.stores.s3_connection import Answer, S3Connection
from chockstone.checkpoints.stores.s3_sink import MultipartSink, SharedUpload
from chockstone.checkpoints.stores.s3_upload import PART_BYTES, S3Upload, part_bytes, put
from chockstone.checkpoints.stores.store import ArchiveSource, PartialWrite, SharedSink, Sink

COPY_RANGE_BYTES: Final = 256 * 1024**2  # S3 takes 5 GiB, but says nothing while it copies them
_COPY_THREADS: Final = 8
_COPIED_BY_RANGE_BYTES: Final = 5 * 1024**2  # S3 copies ranges only of objects that are larger
_SMALL_BYTES: Final = 1024**2
_DELETE_ATTEMPTS: Final = 10
_SEEN_SECONDS: Final = 10.0  # for which a bucket that was listed counts as there
_READ: Final = "s3:GetObject and s3:ListBucket (without the latter, S3 answers 403 for what is not there)"


class S3Bucket:
    def __init__(self, connection: S3Connection) -> None:
        self._s3 = connection
        self._under_way: set[str] = set()
        self._seen_monotonic: float | None = None  # when a listing last showed that the bucket is there

    @property
    def url(self) -> str:
        return self._s3.url

    def begin(self, key: str, size: int) -> Sink:
        if size > PART_BYTES:
            return MultipartSink(self._s3, key, size, under_way=self._under_way)
        return InMemorySink(f"{self.url}/{key}", size, partial(self._put, key))

    def join(self, key: str, size: int, ticket: str) -> SharedSink:
        if size > PART_BYTES:
            return SharedUpload(self._s3, key, size, ticket)
        return NonWritingSink(f"{self.url}/{key}", size, ticket)

    def unit_bytes(self, size: int) -> int:
        return part_bytes(size) if size > PART_BYTES else size

    def _put(self, key: str, content: bytearray, overwrite: bool) -> None:
        put(self._s3, key, content, overwrite=overwrite)

    def source(self, facts: ObjectFacts) -> ArchiveSource:
        return ObjectSource(
            self._s3.reader, facts, url=self.url, permission=_READ, retry_policy=self._s3.retry_policy, repeats=True
        )

    def find(self, key: str) -> ObjectFacts | None:
        with self._explained("look at", key, _READ):
            return self._find(key)

    def _find(self, key: str) -> ObjectFacts | None:
        try:
            answer = self._s3.request("head_object", Key=key)
        except RequestFailed as failure:
            if not failure.is_absent:
                raise self._reason(failure, key) from failure
            self._check_bucket()
            return None
        return ObjectFacts(key, answer["ContentLength"], answer["LastModified"], answer["ETag"])

    def _reason(self, refused: RequestFailed, key: str) -> RequestFailed:
        """An answer to HEAD has no body to say why, such as a wrong key or one that has expired; one to GET has."""
        if refused.status not in {400, 401, 403}:
            return refused
        try:
            self._s3.request_now("get_object", Key=key, Range="bytes=0-0")["Body"].close()
        except RequestFailed as failure:
            return failure if failure.status == refused.status else refused
        return refused

    def _check_bucket(self) -> None:
        """An answer to HEAD has no body to say whether the key or the whole bucket is missing."""
        if self._seen_monotonic is not None and time.monotonic() - self._seen_monotonic < _SEEN_SECONDS:
            return
        try:
            self._s3.request("head_bucket")
        except RequestFailed as failure:
            if failure.status == 404:
                raise RequestFailed("there is no such bucket", status=404, code="NoSuchBucket") from failure
            if (
                failure.status != 403
            ):  # 403: no permission to ask about the bucket, so the answer that the key is missing stands
                raise

    def below(self, key: str) -> Iterator[ObjectFacts]:
        with self._explained("list", key, "s3:ListBucket"):
            for page in self._s3.pages("list_objects_v2", Prefix=f"{key}/" if key else ""):
                self._seen_monotonic = time.monotonic()
                for item in page.get("Contents", []):
                    yield ObjectFacts(item["Key"], item["Size"], item["LastModified"], item["ETag"])

    def delete(self, key: str, found: ObjectFacts | None = None) -> bool:
        """Delete the object, on condition that it is still the one that was found.

        Of concurrent calls one returns True where S3 heeds If-Match on DELETE, as AWS does since 2025;
        a server that ignores it lets several that overlap return True. When an answer was lost and
        the object is gone, this call counts as the one.
        """
        with self._explained("delete", key, "s3:DeleteObject, s3:GetObject and s3:ListBucket"):
            for _ in range(_DELETE_ATTEMPTS):
                if found is None and (found := self._find(key)) is None:
                    return False
                try:
                    self._s3.request("delete_object", Key=key, IfMatch=found.etag)
                    return True
                except RequestFailed as failure:
                    if failure.is_absent:
                        return failure.was_retried
                    if failure.status == 501:
                        self._s3.request("delete_object", Key=key)  # a server that knows no such condition
                        return True
                    if failure.status not in {409, 412}:  # replaced since; look again
                        raise
                    found = None
        raise StoreUnreachable(f"cannot delete {self.url}/{key}: it is replaced again and again; try again later")

    def presign(self, key: str, *, method: str, seconds: int, filename: str, content_type: str) -> str | None:
        """Signed on this machine: no request is sent, and the object may not exist."""
        with self._explained("sign a URL of", key, "s3:GetObject"):
            return self._s3.presigned(
                "head_object" if method == "HEAD" else "get_object",
                seconds,
                Key=key,
                ResponseContentDisposition=f'attachment; filename="{filename}"',
                ResponseContentType=content_type,
            )

    def copy(self, facts: ObjectFacts, target: str, *, overwrite: bool) -> None:
        self._copy(facts, 0, facts.size, target, overwrite=overwrite)

    def copy_range(self, facts: ObjectFacts, start: int, size: int, target: str) -> None:
        """Copied by the server, except for small ranges: reading and writing those takes fewer requests."""
        if facts.size > _COPIED_BY_RANGE_BYTES and size > _SMALL_BYTES:
            self._copy(facts, start, start + size, target, overwrite=True)
        else:
            self._put(target, read_range(self.source(facts), start, size), overwrite=True)

    def _copy(self, facts: ObjectFacts, start: int, end: int, target: str, *, overwrite: bool) -> None:
        upload = S3Upload.begin(self._s3, target, under_way=self._under_way)
        try:
            with self._explained("copy", facts.key, "s3:GetObject and s3:PutObject"):
                self._copy_parts(facts, start, end, upload)
            upload.complete(overwrite=overwrite)
        finally:
            upload.abort()

    def _copy_parts(self, facts: ObjectFacts, start: int, end: int, upload: S3Upload) -> None:
        source = {"Bucket": self._s3.bucket, "Key": facts.key}
        length = part_bytes(end - start, smallest=COPY_RANGE_BYTES)
        starts = range(start, end, length)

        def copy_one(index: int) -> None:
            whole = end - start == facts.size <= length
            byte_range = None if whole else (starts[index], min(starts[index] + length, end))
            upload.add_copy(index, source, byte_range, etag=facts.etag or "*")

        try:
            with ThreadPoolExecutor(_COPY_THREADS) as pool:
                list(pool.map(copy_one, range(max(1, len(starts)))))
        except RequestFailed as failure:
            place = f"{self.url}/{facts.key}"
            if failure.is_absent and failure.code != "NoSuchUpload":
                raise CheckpointMissing(f"{place} was deleted while it was being copied") from failure
            if failure.status == 412:
                raise StoreError(f"{place} was replaced while it was being copied; copy it again") from failure
            raise

    def sweep(
        self, key: str, *, is_ours: Callable[[str], bool], min_age_seconds: float, dry_run: bool
    ) -> list[PartialWrite]:
        now = datetime.now(UTC)
        swept: list[PartialWrite] = []
        permission = "s3:ListBucketMultipartUploads, s3:ListMultipartUploadParts and s3:AbortMultipartUpload"
        with self._explained("sweep", key, permission):
            pages = self._s3.pages("list_multipart_uploads", Prefix=f"{key}/" if key else "")
            uploads = list(itertools.chain.from_iterable(page.get("Uploads", []) for page in pages))
            for upload in uploads:
                age_seconds = max(0.0, (now - upload["Initiated"]).total_seconds())
                spared = upload["UploadId"] in self._under_way or not is_ours(upload["Key"])
                if spared or age_seconds < min_age_seconds:
                    continue
                if (size := self._discard(upload, dry_run=dry_run)) is not None:
                    swept.append(PartialWrite(_place(self.url, upload), size, age_seconds))
        return swept

    def _discard(self, upload: Answer, *, dry_run: bool) -> int | None:
        """The bytes of an upload, or None when it was finished or discarded meanwhile."""
        which = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
        try:
            size: int = sum(
                part["Size"] for page in self._s3.pages("list_parts", **which) for part in page.get("Parts", [])
            )
            if not dry_run:
                self._s3.request("abort_multipart_upload", **which)
        except RequestFailed as failure:
            if failure.is_absent:
                return None
            raise
        return size

    def _explained(self, verb: str, key: str, permission: str) -> AbstractContextManager[None]:
        return explained(f"cannot {verb} {self.url}/{key}", bucket=self.url, permission=permission)


def _place(url: str, upload: Answer) -> str:
    return f"{url}/{upload['Key']}?uploadId={upload['UploadId']}"
