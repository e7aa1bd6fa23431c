"""Weight uploads: files of an import, on disk from its start until it is finished or expires.

An upload is a directory with ``upload.json``, which is written last of its beginning, and with the files that arrived
whole. Uploads survive a restart of the server. A file that is sent again replaces the one before.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

from chockstone.catalog import RowMissing
from chockstone.wire.codecs.json_files import parse_json
from chockstone.wire.failures import BadRequest

_FACTS: Final = "upload.json"
_PART: Final = ".part-"
_FREE_AT_LEAST: Final = 64 << 20  # bytes of the disk that files of uploads never take


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpload:
    """What an import will be. ``files``: the maximum size of each file that the client sends."""

    upload_id: str
    owner: str
    run_id: str
    name: str
    base_model: str
    spec: Mapping[str, Any]  # Any: plain JSON
    optimizer: Mapping[str, Any]  # Any: plain JSON
    project_id: str | None
    files: Mapping[str, int]
    expires_at: datetime

    @property
    def size_bytes(self) -> int:
        return sum(self.files.values())


def new_upload_id() -> str:
    return secrets.token_hex(16)


class WeightUploads:
    """All methods block for the disk: call them in a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._part = f"{_PART}{secrets.token_hex(4)}-"  # of files that this server writes
        self._added: set[str] = set()  # by this server

    def add(self, upload: WeightUpload, *, reserve_bytes: int) -> None:
        """Raises BadRequest if its files may not fit on the disk."""
        self._directory.mkdir(exist_ok=True)
        free = shutil.disk_usage(self._directory).free - max(reserve_bytes, _FREE_AT_LEAST)
        if upload.size_bytes > free:
            raise BadRequest(
                f"the files of an import for {upload.base_model!r} may have {upload.size_bytes} bytes, and the disk of "
                f"this server has {max(free, 0)} left for them. Free space, and import again",
                code="no_room",
                needed_bytes=upload.size_bytes,
            )
        place = self._directory / upload.upload_id
        self._added.add(upload.upload_id)
        place.mkdir()
        facts = {**asdict(upload), "expires_at": upload.expires_at.isoformat()}
        part = place / f"{_FACTS}{self._part}"
        part.write_text(json.dumps(facts))
        part.rename(place / _FACTS)

    def get(self, upload_id: str) -> WeightUpload:
        """Raises RowMissing, also for one of which the beginning was not written."""
        if not upload_id.isascii() or not upload_id.isalnum():  # it comes from a client
            raise not_there(upload_id)
        try:
            facts = parse_json((self._directory / upload_id / _FACTS).read_bytes())
            return WeightUpload(**{**facts, "expires_at": datetime.fromisoformat(facts["expires_at"])})
        except (OSError, ValueError, TypeError, KeyError):
            raise not_there(upload_id) from None

    def all(self) -> list[WeightUpload]:
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return []
        found: list[WeightUpload] = []
        for name in names:
            with suppress(RowMissing):
                found.append(self.get(name))
        return found

    @contextmanager
    def receiving(self, upload: WeightUpload, name: str) -> Iterator[IO[bytes]]:
        """A file to write. It becomes a file of the upload when the block ends, and disappears when it raises."""
        place = self._directory / upload.upload_id
        part = place / f"{name}{self._part}{secrets.token_hex(8)}"
        try:
            file = open(part, "xb")  # noqa: SIM115  # closed below
        except FileNotFoundError:
            raise not_there(upload.upload_id) from None
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.rename(place / name)
        except FileNotFoundError:  # swept meanwhile
            raise not_there(upload.upload_id) from None
        finally:
            part.unlink(missing_ok=True)

    def path(self, upload: WeightUpload, name: str) -> Path:
        return self._directory / upload.upload_id / name

    def clear(self, upload: WeightUpload) -> None:
        """Delete its files, and keep what is known of it."""
        for name in upload.files:
            self.path(upload, name).unlink(missing_ok=True)

    def remove(self, upload_id: str) -> None:
        self._added.discard(upload_id)
        shutil.rmtree(self._directory / upload_id, ignore_errors=True)

    def sweep(self, now: datetime, *, is_start: bool = False) -> list[str]:
        """Delete uploads that expired and, at the start of a server, leftovers of the one before; returns their ids."""
        known = {upload.upload_id: upload for upload in self.all()}
        swept = [upload_id for upload_id, upload in known.items() if upload.expires_at <= now]
        if is_start:
            with suppress(FileNotFoundError):
                swept += sorted(set(os.listdir(self._directory)) - known.keys() - self._added)
            for part in self._directory.glob(f"*/*{_PART}*"):
                if self._part not in part.name:
                    part.unlink(missing_ok=True)
        for upload_id in swept:
            self.remove(upload_id)
        return swept


def not_there(upload_id: str) -> RowMissing:
    """The same answer for an upload of another user."""
    return RowMissing(
        f"upload {upload_id[:100]!r} is not yours, or not there: it may have expired. Begin the import again"
    )
