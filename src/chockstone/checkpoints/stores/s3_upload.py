"""S3 uploads: an object appears under its key whole, and only once.

Every write carries a token in the object's metadata. When the answer to the request that makes it
visible is lost, the token tells whether the object that stands there is this one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Final, Self

from chockstone.checkpoints.errors import StoreError, StoreUnreachable
from chockstone.checkpoints.format.tar import round_up
from chockstone.checkpoints.stores.bucket import RequestFailed, exists_already, explain, explained
from chockstone.checkpoints.stores.s3_connection import Answer, S3Connection

PART_BYTES: Final = 8 * 1024**2
MAX_PARTS: Final = 9_000  # S3 takes 10,000
_PART_UNIT: Final = 1024**2
_METADATA_KEY: Final = "chockstone-write"
_WRITE: Final = "s3:PutObject"

log = logging.getLogger(__name__)


def part_bytes(size: int, *, smallest: int = PART_BYTES) -> int:
    """The length of each part of an upload, except the last."""
    return max(smallest, round_up(-(-size // MAX_PARTS), _PART_UNIT))


class S3Upload:
    """One multipart upload. Parts may be added from several threads; ``complete`` or ``abort`` ends it."""

    def __init__(self, s3: S3Connection, key: str, upload_id: str, *, token: str, under_way: set[str]) -> None:
        """Begin an upload. The process that has it in ``under_way`` ends it; sweeps spare those."""
        self.place = f"{s3.url}/{key}"
        self.upload_id = upload_id
        self.etags: dict[int, str] = {}  # of its parts, counted from zero
        self._s3 = s3
        self._key = key
        self._token = token
        self._under_way = under_way

    @classmethod
    def begin(cls, s3: S3Connection, key: str, *, under_way: set[str]) -> Self:
        token = secrets.token_hex(16)
        with explained(f"cannot write {s3.url}/{key}", bucket=s3.url, permission=_WRITE):
            answer = s3.request("create_multipart_upload", Key=key, Metadata={_METADATA_KEY: token})
        under_way.add(answer["UploadId"])
        return cls(s3, key, answer["UploadId"], token=token, under_way=under_way)

    @classmethod
    def join(cls, s3: S3Connection, key: str, upload_id: str) -> Self:
        """Join an upload that another process began and ends."""
        return cls(s3, key, upload_id, token="", under_way=set())

    def add(self, index: int, content: bytearray) -> None:
        """Upload part ``index``."""
        with explained(f"cannot write {self.place}", bucket=self._s3.url, permission=_WRITE):
            answer = self._request("upload_part", PartNumber=index + 1, Body=content)
        self.etags[index] = answer["ETag"]

    def add_copy(self, index: int, source: dict[str, str], byte_range: tuple[int, int] | None, *, etag: str) -> None:
        """Make a range of another object part ``index``; all of it for None. Raises ``RequestFailed``."""
        ranged = {} if byte_range is None else {"CopySourceRange": f"bytes={byte_range[0]}-{byte_range[1] - 1}"}
        answer = self._request(
            "upload_part_copy", PartNumber=index + 1, CopySource=source, CopySourceIfMatch=etag, **ranged
        )
        self.etags[index] = answer["CopyPartResult"]["ETag"]

    def complete(self, *, overwrite: bool) -> None:
        """Make the parts visible as one object; raises with nothing visible."""
        parts = [{"PartNumber": index + 1, "ETag": self.etags[index]} for index in sorted(self.etags)]

        def send(**condition: str) -> Answer:
            return self._request("complete_multipart_upload", MultipartUpload={"Parts": parts}, **condition)

        publish(self._s3, self._key, self._token, send, overwrite=overwrite, give_up=self.abort)
        self._under_way.discard(self.upload_id)

    def abort(self) -> bool:
        """Discard the upload; returns False and logs it when S3 does not answer. Harmless when called twice."""
        if self.upload_id not in self._under_way:
            return True
        try:
            self._s3.request_now("abort_multipart_upload", Key=self._key, UploadId=self.upload_id)
        except RequestFailed as failure:
            if not failure.is_absent:
                log.warning("upload left behind place=%s cause=%r next=sweep", self.place, failure.summary)
                return False
        finally:
            self._under_way.discard(self.upload_id)
        return True

    def _request(self, operation: str, **parameters: object) -> Answer:
        return self._s3.request(operation, Key=self._key, UploadId=self.upload_id, **parameters)


def put(s3: S3Connection, key: str, content: bytearray, *, overwrite: bool) -> None:
    """Write a small object in one request; boto3's, so that it settles lost answers as uploads do."""
    token = secrets.token_hex(16)

    def send(**condition: str) -> Answer:
        return s3.request("put_object", Key=key, Body=content, Metadata={_METADATA_KEY: token}, **condition)

    publish(s3, key, token, send, overwrite=overwrite, give_up=lambda: True)


def publish(
    s3: S3Connection,
    key: str,
    token: str,
    send: Callable[..., Answer],
    *,
    overwrite: bool,
    give_up: Callable[[], bool],
) -> None:
    """Send the request that makes an object visible. Where the answer is lost, find out whether it succeeded.

    ``give_up`` makes sure that it cannot become visible any more, and returns whether it could.
    """
    condition = {} if overwrite else {"IfNoneMatch": "*"}
    try:
        send(**condition)
    except RequestFailed as failure:
        is_over = give_up()
        found = None if failure.is_definite else _token_at(s3, key)
        if found != token:
            raise _lost(failure, found, s3, key, overwrite=overwrite, is_over=is_over) from failure
    except BaseException:
        give_up()
        raise


def _lost(
    failure: RequestFailed, found: str | None, s3: S3Connection, key: str, *, overwrite: bool, is_over: bool
) -> StoreError:
    """Why what stands there, as ``_token_at`` found it, is not what was to be written."""
    place = f"{s3.url}/{key}"
    if failure.status == 412 or (found and not overwrite):
        return exists_already(place)
    if failure.status == 409:
        return StoreUnreachable(f"cannot commit {place}: another write or delete of it came between; save it again")
    if not failure.is_definite and (found is None or not is_over):
        return StoreUnreachable(
            f"cannot say whether {place} was committed: {failure.summary}, nor could S3 be asked; look for it later"
        )
    return explain(failure, f"cannot commit {place}", bucket=s3.url, permission=_WRITE)


def _token_at(s3: S3Connection, key: str) -> str | None:
    """The token of the object there, or other text; empty when there is no object, None when it cannot be known."""
    try:
        metadata = s3.request_now("head_object", Key=key)["Metadata"]
    except RequestFailed as failure:
        return "" if failure.is_absent else None
    return str(metadata.get(_METADATA_KEY, "unknown"))
