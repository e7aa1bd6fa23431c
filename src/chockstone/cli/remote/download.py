"""Downloads an archive of a server into a file, resuming where the last attempt ended.

The bytes that arrived are in ``.NAME.….part`` beside the target. The name of the part tells which version of the
archive it belongs to, so two versions are never mixed. The archive is verified before it gets its final name. An
interrupted download leaves the part, and the next one resumes from it.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request

from chockstone.checkpoints import Archive, verify_archive
from chockstone.checkpoints.errors import DamagedArchive, ForeignArchive
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.checkpoints.stores.posix import explained, fsync_directory, move_if_absent
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.output.terminal import bytes_bar
from chockstone.cli.remote.client import ServerUnreachable, opener_for, read_refusal

_CHUNK: Final = 1 << 20
_SECONDS: Final = 60.0
_PATIENCE: Final = 6  # attempts in a row that bring nothing
_SUFFIX: Final = ".part"
_PART: Final = re.compile(rf"[0-9a-f]{{12}}{_SUFFIX}")


class TargetTaken(CommandFailed):
    """The file is there already, or another download is writing it."""

    exit_code = ExitCode.USAGE


class CannotBeFetched(CommandFailed):
    """The server found the archive damaged."""

    exit_code = ExitCode.FAILED


class _Lost(Exception):
    """The connection ended early, or the URL has: asking for another one tells which."""


class _Changed(Exception):
    """The archive is another one than it was."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a URL leads to."""

    size_bytes: int
    tag: str | None  # None: parts cannot be asked for

    @property
    def mark(self) -> str:
        return hashlib.sha256((self.tag or "").encode()).hexdigest()[:12]


def download(sign: Callable[[], str], target: Path, *, label: str) -> int:
    """Make ``target``, which must not exist, and return its size. On return it is verified and durable."""
    if os.path.lexists(target):
        raise _taken(target)
    with fetched(sign, target, label=label) as part, explained(f"cannot write {target}"):
        size_bytes = part.stat().st_size
        try:
            move_if_absent(part, target)
        except FileExistsError:
            raise _taken(target) from None
        fsync_directory(target.parent)
    return size_bytes


@contextmanager
def fetched(sign: Callable[[], str], target: Path, *, label: str) -> Iterator[Path]:
    """The whole archive, verified, as a file beside ``target``; the block may move it, else it is removed.

    ``sign`` gives a URL that needs no credential; it is asked again when one has expired.
    """
    for _ in range(3):
        try:
            part = _fetch(sign, target.absolute(), label)
            break
        except _Changed:
            continue
    else:
        raise ServerUnreachable(f"{label} was replaced during each attempt to download it; try again later")
    _verify(part, label)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _fetch(sign: Callable[[], str], target: Path, label: str) -> Path:
    url = sign()
    offer = _ask(url, label)
    part = target.parent / f".{target.name}.{offer.mark}{_SUFFIX}"
    _remove_others(part, target)
    with _opened(part) as file, bytes_bar(label, offer.size_bytes) as on_bytes:
        if offer.tag is None or file.tell() > offer.size_bytes:
            _truncate(file)
        on_bytes(file.tell())
        failures = 0
        while file.tell() < offer.size_bytes:
            before = file.tell()
            try:
                _take(url, offer, file, on_bytes)
            except _Lost as error:
                failures = 1 if file.tell() > before else failures + 1
                if failures >= _PATIENCE:
                    raise ServerUnreachable(
                        f"the download of {label} broke off after {file.tell():,} of {offer.size_bytes:,} bytes: "
                        f"{error}. Run the command again to resume from there."
                    ) from None
                time.sleep(min(8.0, 0.25 * 2**failures))
                url = sign()
        with explained(f"cannot write {part}"):
            file.flush()
            os.fsync(file.fileno())
    return part


def _ask(url: str, label: str) -> _Offer:
    """One byte, for the size and the version of the whole."""
    for attempt in range(1, _PATIENCE + 1):
        try:
            with _open(url, {"Range": "bytes=0-0"}) as answer:
                if answer.status == 206:
                    return _Offer(int(answer.headers["Content-Range"].rpartition("/")[2]), answer.headers["ETag"])
                return _Offer(int(answer.headers["Content-Length"]), None)
        except (_Lost, _Changed, KeyError, TypeError, ValueError) as error:
            if attempt == _PATIENCE:
                raise ServerUnreachable(f"{label} cannot be downloaded: {error}") from None
            time.sleep(0.25 * attempt)
    raise AssertionError("the last attempt returns or raises")


def _take(url: str, offer: _Offer, file: IO[bytes], on_bytes: Callable[[int], None]) -> None:
    """What is missing, as far as the connection holds. Raises _Lost, _Changed."""
    headers = {}
    if offer.tag is not None:
        headers = {"Range": f"bytes={file.tell()}-", "If-Range": offer.tag}
    elif file.tell():
        raise _Changed  # from the start again
    with _open(url, headers) as answer:
        if offer.tag is not None and (answer.status != 206 or answer.headers["ETag"] != offer.tag):
            raise _Changed
        while file.tell() < offer.size_bytes:
            try:
                chunk = answer.read1(min(_CHUNK, offer.size_bytes - file.tell()))  # not to wait, and lose, a whole one
            except (OSError, http.client.HTTPException) as error:
                raise _Lost(str(error) or type(error).__name__) from None
            if not chunk:
                raise _Lost("the server closed the connection")
            with explained("cannot write the downloaded bytes"):
                file.write(chunk)
            on_bytes(len(chunk))


def _open(url: str, headers: dict[str, str], *, is_elsewhere: bool = False) -> Any:  # Any: urllib types loosely
    """``is_elsewhere``: the server sent us there, to the store that has the archive. No credential is sent."""
    request = Request(url, headers=headers)  # noqa: S310  # http only, as `connect` saw to
    try:
        return opener_for(urlsplit(url).hostname or "").open(request, timeout=_SECONDS)
    except HTTPError as error:
        with error:
            place = error.headers.get("Location", "")
            if error.code in (302, 307) and not is_elsewhere and place.startswith(("http://", "https://")):
                return _open(place, headers, is_elsewhere=True)
            if error.code in (412, 416):
                raise _Changed from None
            if error.code == 400:
                raise CannotBeFetched(read_refusal(error)[0] or "the server refuses the download") from None
            raise _Lost(f"status {error.code}") from None
    except (URLError, OSError, http.client.HTTPException) as error:
        raise _Lost(str(getattr(error, "reason", None) or error)) from None


@contextmanager
def _opened(part: Path) -> Iterator[IO[bytes]]:
    with explained(f"cannot write {part}"):
        file = open(part, "ab")  # noqa: SIM115  # closed below
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetTaken(f"another download is writing {str(part)!r}; wait for it, or name another file") from None
        yield file


def _truncate(file: IO[bytes]) -> None:
    file.truncate(0)
    file.seek(0)


def list_parts(target: Path) -> list[Path]:
    """What downloads to ``target`` that did not end have left."""
    directory = target.absolute().parent
    with explained(f"cannot look into {directory}"):
        entries = os.listdir(directory)
    start = f".{target.name}."
    return [directory / entry for entry in entries if entry.startswith(start) and _PART.fullmatch(entry, len(start))]


def _remove_others(part: Path, target: Path) -> None:
    """Parts of versions that are no more."""
    for other in list_parts(target):
        if other != part:
            other.unlink(missing_ok=True)


def _verify(part: Path, label: str) -> None:
    try:
        with Archive(open_file(part)) as archive, bytes_bar(f"verifying {label}", archive.size) as on_bytes:
            verify_archive(archive, on_bytes=on_bytes)
    except (DamagedArchive, ForeignArchive):
        part.unlink(missing_ok=True)  # of no use to another attempt
        raise


def _taken(target: Path) -> TargetTaken:
    return TargetTaken(f"{str(target)!r} exists already; name another file, or remove it first")
