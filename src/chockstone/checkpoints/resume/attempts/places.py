"""Places: the storage of one attempt, a folder ``<dest>.ckpt`` of records and archives, in a directory or a bucket.

A record is a small file that is written once; an archive is a generation. One ``listing`` returns all names and sizes,
and whether the place exists.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from chockstone.checkpoints.errors import CheckpointExists, CheckpointMissing, DamagedArchive, InvalidName, StoreError
from chockstone.checkpoints.resume.attempts.claims import CLAIMS
from chockstone.checkpoints.resume.attempts.cost import Cost, MeteredSource
from chockstone.checkpoints.stores.bucket import Bucket, ObjectFacts, RequestFailed, RetryPolicy, S3Access
from chockstone.checkpoints.stores.file_store import PARTIAL, FileStore
from chockstone.checkpoints.stores.object_store import ObjectStore, connect
from chockstone.checkpoints.stores.posix import ensure_directory, explain, explained, fsync_directory, move_if_absent
from chockstone.checkpoints.stores.store import SUFFIX, ArchiveSource, Store, file_path

FOLDER: Final = ".ckpt"
MAX_RECORD_BYTES: Final = 256 * 1024
_PAGE_KEYS: Final = 1000  # per page of a listing; only one page is consistent
RETRY_POLICY: Final = RetryPolicy(attempts=3, connect_seconds=5.0, silence_seconds=10.0)
_SCHEMES: Final = {"s3", "gs", "az"}


@dataclass(frozen=True, slots=True)
class PlaceListing:
    records: dict[str, int] = field(default_factory=dict)  # size by name, such as claims/000001.json
    archives: dict[str, int] = field(default_factory=dict)  # size by name without the suffix
    exists: bool = False  # also true of an empty place

    @property
    def is_empty(self) -> bool:
        return not self.records and not self.archives


class AttemptPlace(Protocol):
    cost: Cost

    @property
    def uri(self) -> str: ...

    @property
    def store(self) -> Store: ...

    def listing(self) -> PlaceListing:
        """List records and archives. The archives are at least as new as the records, so they contain every commit
        that a fence in the listing has recorded."""

    def open(self, name: str) -> ArchiveSource:
        """Open an archive, with the facts of the last listing if there was one."""

    def read(self, record: str, limit: int = MAX_RECORD_BYTES) -> bytes:
        """Raises CheckpointMissing if there is no such record, and DamagedArchive if it is too large."""

    def records(self, folder: str) -> list[str]:
        """Return the records in one folder of the place, with one request."""

    def put_if_absent(self, record: str, content: bytes) -> bool:
        """Return whether this call created the record. On return it is durable."""

    def put(self, record: str, content: bytes) -> None: ...

    def delete(self, record: str) -> bool: ...

    def remove(self, name: str) -> bool:
        """Remove an archive, as seen by the last listing if there was one. Return whether this call removed it."""


class AttemptPlaces:
    """Opens places, with one connection per bucket. Thread-safe."""

    def __init__(self, *, retry_policy: RetryPolicy = RETRY_POLICY, access: S3Access | None = None) -> None:
        self._retry_policy = retry_policy
        self._access = access
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self.cost = Cost()  # of all places together
        self._lock = threading.Lock()

    def open(self, uri: str | os.PathLike[str]) -> AttemptPlace:
        scheme, bucket, path = split(uri)
        cost = Cost(self.cost)
        return BucketPlace(self._bucket(scheme, bucket), path, cost) if scheme else FilePlace(Path(path), cost)

    def names(self, uri: str | os.PathLike[str]) -> list[str]:
        """Return the names of files and folders directly below a folder or prefix; [] if it does not exist."""
        scheme, bucket, path = split(uri)
        if scheme:
            with self.cost.request():
                below = self._bucket(scheme, bucket).below(path)
                return sorted({facts.key[len(path) + 1 :].partition("/")[0] for facts in below})
        with self.cost.request(), explained(f"cannot list {path}"):
            try:
                return sorted(os.listdir(path))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _bucket(self, scheme: str, bucket: str) -> Bucket:
        with self._lock:
            if (scheme, bucket) not in self._buckets:
                self._buckets[scheme, bucket] = connect(scheme, bucket, self._retry_policy, self._access)
            return self._buckets[scheme, bucket]


def normalise(uri: str | os.PathLike[str]) -> str:
    """Return the canonical URI of a place, to compare, show and store. Raises InvalidName if it has credentials."""
    scheme, bucket, path = split(uri)
    return f"{scheme}://{bucket}/{path}" if scheme else Path(path).as_uri()


def split(uri: str | os.PathLike[str]) -> tuple[str, str, str]:
    """Return (scheme, bucket, key), or ("", "", absolute path)."""
    text = os.fspath(uri)
    if "\0" in unquote(text):
        raise InvalidName("the place of a checkpoint has a null byte in it")
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in {"", "file"}:
        path = os.path.normpath(os.path.abspath(os.path.expanduser(file_path(text) if scheme else text)))  # links stay
        if not text or path == os.sep:
            raise InvalidName(
                f"{text!r} cannot be the place of a checkpoint: there is no room beside it; name a folder"
            )
        return "", "", path
    parts = urlsplit(text)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidName(  # not quoted back: this is where people put credentials
            f"the place of a checkpoint is a bucket and a key only: write {scheme}://bucket/path and put credentials, "
            "endpoint and region into the environment"
        )
    key = "/".join(part for part in parts.path.split("/") if part)
    if scheme not in _SCHEMES or not parts.netloc:
        raise InvalidName(f"{text!r} is no place for a checkpoint: use a path, file://, s3://, gs:// or az://")
    if not key:
        raise InvalidName(f"{text!r} is a whole bucket, and there is no room beside it; add a path after the bucket")
    if any(part in {".", ".."} for part in key.split("/")):
        raise InvalidName(f"{text!r} has '.' or '..' in it; write the place itself")
    return scheme, parts.netloc, key


class FilePlace:
    def __init__(self, path: Path, cost: Cost | None = None) -> None:
        self.path = path
        self.folder = path.with_name(path.name + FOLDER)
        self.store = FileStore(self.folder)
        self.cost = cost or Cost()

    @property
    def uri(self) -> str:
        return self.path.as_uri()

    def listing(self) -> PlaceListing:
        with self.cost.request():
            records: dict[str, int] = {}
            archives: dict[str, int] = {}
            self._scan(self.folder / CLAIMS, f"{CLAIMS}/", records)
            exists = self._scan(self.folder, "", records)
            for name in [name for name in records if name.endswith(SUFFIX)]:
                archives[name.removesuffix(SUFFIX)] = records.pop(name)
            return PlaceListing(records, archives, exists or self._is_there())

    def _scan(self, folder: Path, prefix: str, found: dict[str, int]) -> bool:
        try:
            with os.scandir(folder) as items:
                for item in items:
                    if item.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):  # gone meanwhile
                            found[prefix + item.name] = item.stat(follow_symlinks=False).st_size
                    elif not prefix and item.name.endswith(SUFFIX):
                        found[item.name] = 0  # a link, a folder: opening it tells what it is, but it is not absent
                    elif item.is_dir(follow_symlinks=False) and not prefix and item.name not in {CLAIMS, PARTIAL}:
                        self._scan(folder / item.name, f"{item.name}/", found)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain(error, f"cannot list {folder}") from error
        return True

    def _is_there(self) -> bool:
        try:
            os.lstat(self.path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain(error, f"cannot look at {self.path}") from error
        return True

    def open(self, name: str) -> ArchiveSource:
        with self.cost.request():
            return MeteredSource(self.store.open(name), self.cost)

    def read(self, record: str, limit: int = MAX_RECORD_BYTES) -> bytes:
        path = self.folder / record
        with self.cost.request(), explained(f"cannot read {path}"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                raise CheckpointMissing(f"there is no {path}") from None
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(limit + 1)
            if len(content) > limit:
                raise DamagedArchive(f"{path} is longer than the {limit} bytes that it may have")
            return content

    def records(self, folder: str) -> list[str]:
        with self.cost.request(), explained(f"cannot list {self.folder / folder}"):
            try:
                return [f"{folder}/{name}" for name in os.listdir(self.folder / folder)]
            except FileNotFoundError:
                return []

    def put_if_absent(self, record: str, content: bytes) -> bool:
        path = self.folder / record
        with self.cost.request(), explained(f"cannot write {path}"):
            spare = self._written(path, content)
            try:
                move_if_absent(spare, path)
            except FileExistsError:
                return False
            finally:
                spare.unlink(missing_ok=True)
            fsync_directory(path.parent)
            return True

    def put(self, record: str, content: bytes) -> None:
        path = self.folder / record
        with self.cost.request(), explained(f"cannot write {path}"):
            spare = self._written(path, content)
            try:
                os.replace(spare, path)
            finally:
                spare.unlink(missing_ok=True)
            fsync_directory(path.parent)

    def _written(self, path: Path, content: bytes) -> Path:
        """The content, durable, beside its place."""
        ensure_directory(path.parent)
        ensure_directory(self.folder / PARTIAL)
        spare = self.folder / PARTIAL / f"record-{secrets.token_hex(8)}"
        try:
            with spare.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            spare.unlink(missing_ok=True)
            raise
        return spare

    def remove(self, name: str) -> bool:
        with self.cost.request():
            return self.store.delete(name)

    def delete(self, record: str) -> bool:
        path = self.folder / record
        with self.cost.request(), explained(f"cannot delete {path}"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return False
            return True


class BucketPlace:
    def __init__(self, bucket: Bucket, key: str, cost: Cost | None = None) -> None:
        self.bucket = bucket
        self.key = key
        self._folder = key + FOLDER
        self.store = ObjectStore(bucket, self._folder)
        self.cost = cost or Cost()
        self._facts: dict[str, ObjectFacts] = {}

    @property
    def uri(self) -> str:
        return f"{self.bucket.url}/{self.key}"

    def listing(self) -> PlaceListing:
        records: dict[str, int] = {}
        archives: dict[str, int] = {}
        found = self._below()
        if len(found) > _PAGE_KEYS:  # archives stand on earlier pages than records do, so they are listed once more
            records_only = {name: facts for name, facts in found.items() if not name.endswith(SUFFIX)}
            found = {name: facts for name, facts in self._below().items() if name.endswith(SUFFIX)} | records_only
        self._facts = found
        for name, facts in found.items():
            if name.endswith(SUFFIX):
                archives[name.removesuffix(SUFFIX)] = facts.size
            else:
                records[name] = facts.size
        return PlaceListing(records, archives, bool(found))

    def _below(self) -> dict[str, ObjectFacts]:
        with self.cost.request():
            return {facts.key[len(self._folder) + 1 :]: facts for facts in self.bucket.below(self._folder)}

    def open(self, name: str) -> ArchiveSource:
        return MeteredSource(self.bucket.source(self.facts(name)), self.cost)

    def facts(self, name: str) -> ObjectFacts:
        """Of an archive, as the last listing saw it where there was one. ``CheckpointMissing`` where there is none."""
        if (facts := self._facts.get(name + SUFFIX)) is None:
            with self.cost.request():
                facts = self.bucket.find(f"{self._folder}/{name}{SUFFIX}")
        if facts is None:
            raise CheckpointMissing(f"checkpoint {name!r} is not in {self.store.url}")
        self._facts[name + SUFFIX] = facts  # it stays as it is, or reading it fails
        return facts

    def read(self, record: str, limit: int = MAX_RECORD_BYTES) -> bytes:
        place = f"{self.bucket.url}/{self._folder}/{record}"
        if (facts := self._facts.get(record)) is None:
            with self.cost.request():
                facts = self.bucket.find(f"{self._folder}/{record}")
        if facts is None:
            raise CheckpointMissing(f"there is no {place}")
        if facts.size > limit:
            raise DamagedArchive(f"{place} has {facts.size} bytes, and may have no more than {limit}")
        content = bytearray(facts.size)
        if content:
            source = MeteredSource(self.bucket.source(facts), self.cost)
            source.read_into(0, memoryview(content))
        return bytes(content)

    def records(self, folder: str) -> list[str]:
        start = len(self._folder) + 1
        with self.cost.request():
            return [facts.key[start:] for facts in self.bucket.below(f"{self._folder}/{folder}")]

    def put_if_absent(self, record: str, content: bytes) -> bool:
        try:
            self._put(record, content, overwrite=False)
        except CheckpointExists:
            return False
        return True

    def put(self, record: str, content: bytes) -> None:
        self._put(record, content, overwrite=True)

    def _put(self, record: str, content: bytes, *, overwrite: bool) -> None:
        with self.cost.request():
            sink = self.bucket.begin(f"{self._folder}/{record}", len(content))
            sink.write_at(0, memoryview(content))
            sink.commit(overwrite=overwrite)

    def remove(self, name: str) -> bool:
        key = f"{self._folder}/{name}{SUFFIX}"
        with self.cost.request():
            return self.bucket.delete(key, self._facts.pop(name + SUFFIX, None))

    def delete(self, record: str) -> bool:
        with self.cost.request():
            self._facts.pop(record, None)
            return self.bucket.delete(f"{self._folder}/{record}")


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error of a store, if one came."""
    while error is not None:
        if isinstance(error, RequestFailed):
            return error.status
        error = error.__cause__ if isinstance(error, StoreError) else None
    return None
