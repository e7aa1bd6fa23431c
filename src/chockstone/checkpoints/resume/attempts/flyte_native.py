"""Flyte's native files: what Flyte's own checkpoints write and read at ``<dest>``, beside our ``<dest>.ckpt``.

The form "tree" is files below ``<dest>/`` (Flyte 1); "object" is ``<dest>`` itself (Flyte 2). Native files have no
digests and no commit, so files fetched from here are unverified. Files written here are copies of a committed archive.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, Literal

from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, DamagedArchive, TruncatedArchive
from chockstone.checkpoints.format.layout import MAX_MEMBERS, Member
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.restoring.export import create_file, open_folder, write_whole
from chockstone.checkpoints.resume.attempts.cost import MeteredSource
from chockstone.checkpoints.resume.attempts.places import FOLDER, AttemptPlace, BucketPlace, FilePlace
from chockstone.checkpoints.stores.bucket import ObjectFacts
from chockstone.checkpoints.stores.file_sink import create_locked
from chockstone.checkpoints.stores.file_store import PARTIAL
from chockstone.checkpoints.stores.posix import ensure_directory, explained, fsync_directory, local_errors
from chockstone.checkpoints.stores.store import ArchiveSource

FlyteNativeForm = Literal["tree", "object"]
ReadInto = Callable[[int, memoryview], None]
PAYLOAD: Final = "payload"  # the name of the one file of an object, as Flyte 2 calls it
_RUN_BYTES: Final = 8 * 1024**2
_REQUESTS: Final = 8  # at a time
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_BY_KERNEL: Final = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY}
_UNKNOWN: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class FlyteNativeFile:
    name: str
    size: int
    etag: str | None = None  # of an object; only the object with this etag is fetched


def list_flyte_native(place: AttemptPlace, form: FlyteNativeForm) -> tuple[FlyteNativeFile, ...]:
    """Return the native files by name. One request, and one more for every thousand files.

    Skips folders, links, devices and, for Flyte 2, an empty object. Names are unchecked: ``fetch_flyte_native`` checks
    them.
    """
    with place.cost.request():
        if isinstance(place, BucketPlace):
            return _list_bucket(place, form)
        return _list_directory(_directory(place), form)


def fetch_flyte_native(
    place: AttemptPlace,
    form: FlyteNativeForm,
    files: Sequence[FlyteNativeFile],
    directory: Path,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write all listed files into a private directory, or raise.

    Raises DamagedArchive before the first byte for names that leave the directory or clash, and for a file whose size
    has changed. Raises LocalResourceError if our own disk fails.
    """
    check_flyte_native(files)
    doing = f"cannot fetch files to {str(directory)!r}"
    with local_errors(doing):
        root = os.open(directory, _DIRECTORY)

    def fetch(file: FlyteNativeFile) -> None:
        with (
            _opened(place, form, file) as read_into,
            local_errors(doing),
            create_file(root, file.name) as target,
        ):
            _stream(read_into, file.size, target, on_bytes)

    try:
        with ThreadPoolExecutor(_REQUESTS if isinstance(place, BucketPlace) else 1) as pool:
            list(pool.map(fetch, files))
    finally:
        os.close(root)


def check_flyte_native(files: Sequence[FlyteNativeFile]) -> None:
    """Raises DamagedArchive for names that no single directory can hold, and for too many files."""
    if len(files) > MAX_MEMBERS:
        raise DamagedArchive(f"there are more than {MAX_MEMBERS} files, which no checkpoint has")
    folded: set[str] = set()
    for file in files:
        if why := _why_not(file.name):
            raise DamagedArchive(f"a file there is named {file.name[:80]!r}: {why}")
        if file.name.casefold() in folded:
            raise DamagedArchive(f"the file {file.name[:80]!r} is there twice, or differs from another only in case")
        folded.add(file.name.casefold())
    for name, following in pairwise(sorted(name.replace("/", "\0") for name in folded)):
        if following.startswith(f"{name}\0"):
            shown = name[:80].replace("\0", "/")
            raise DamagedArchive(f"the file {shown!r} is also the folder of another one")


def refresh_flyte_native(
    place: AttemptPlace, name: str, members: Sequence[Member], *, form: FlyteNativeForm = "tree", replace: bool = False
) -> None:
    """Copy members of the committed archive ``name`` to the native files. Each file is replaced in one step.

    Other files of a tree stay, or with ``replace`` are removed after the new ones are written. An object takes exactly
    one member. A bucket copies the bytes itself.
    """
    if form == "object" and len(members) != 1:
        raise CheckpointError(f"{place.uri} is one object and cannot show {len(members)} files")
    if isinstance(place, BucketPlace):
        _refresh_bucket(place, name, members, form)
    else:
        _refresh_directory(_directory(place), name, members, form)
    if replace and form == "tree":
        wanted = {member.name for member in members}
        _remove(place, [file.name for file in list_flyte_native(place, form) if file.name not in wanted])


def clear_flyte_native(place: AttemptPlace, form: FlyteNativeForm, files: Mapping[str, int]) -> int:
    """Remove the native files with these names and sizes and return their number. Files of another size stay.

    Call it before the archive is removed: after a kill in between, the archive still names the copies to remove.
    """
    if isinstance(place, BucketPlace):
        keys = {place.key if form == "object" else f"{place.key}/{name}": size for name, size in files.items()}
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return sum(pool.map(lambda pair: _clear_object(place, *pair), keys.items()))
    directory = _directory(place)
    listed = {file.name: file.size for file in _list_directory(directory, form)}
    if form == "object":
        wanted = set(files.values())
        if listed.get(PAYLOAD) not in wanted:
            return 0
        with explained(f"cannot remove {directory.path}"), suppress(FileNotFoundError):
            os.unlink(directory.path)
        return 1
    copies = [name for name, size in files.items() if listed.get(name) == size]
    if copies:
        _remove(place, copies)
    return len(copies)


def _clear_object(place: BucketPlace, key: str, size: int) -> bool:
    with place.cost.request():
        facts = place.bucket.find(key)
    if facts is None or facts.size != size:
        return False
    with place.cost.request():
        return place.bucket.delete(key, facts)


def _why_not(name: str) -> str | None:
    components = name.split("/")
    if any(component in {"", ".", ".."} for component in components):
        return "it is absolute, or has '', '.' or '..' in it"
    if components[0].casefold() == FOLDER:
        return f"{FOLDER!r} is the folder of our own checkpoints"
    if not name.isprintable() or "\\" in name:
        return "it has characters in it that names do not have"
    if any(len(component.encode()) > 255 for component in components) or len(name) > 1024:
        return "it is longer than file systems allow"
    return None


def _directory(place: AttemptPlace) -> FilePlace:
    if not isinstance(place, FilePlace):
        raise TypeError(f"{type(place).__name__} has no native files")
    return place


def _list_bucket(place: BucketPlace, form: FlyteNativeForm) -> tuple[FlyteNativeFile, ...]:
    if form == "object":
        facts = place.bucket.find(place.key)
        return (FlyteNativeFile(PAYLOAD, facts.size, facts.etag),) if facts is not None and facts.size else ()
    start = len(place.key) + 1
    found = (
        FlyteNativeFile(facts.key[start:], facts.size, facts.etag)
        for facts in place.bucket.below(place.key)
        if not facts.key.endswith("/")  # consoles make those for folders
    )
    return tuple(sorted(islice(found, MAX_MEMBERS + 1), key=lambda file: file.name))


def _list_directory(place: FilePlace, form: FlyteNativeForm) -> tuple[FlyteNativeFile, ...]:
    found: list[FlyteNativeFile] = []
    with explained(f"cannot list {place.path}"):
        if form == "object":
            with suppress(FileNotFoundError):
                facts = os.lstat(place.path)
                if stat.S_ISREG(facts.st_mode) and facts.st_size:
                    found.append(FlyteNativeFile(PAYLOAD, facts.st_size))
            return tuple(found)
        pending = [""]
        while pending and len(found) <= MAX_MEMBERS:
            prefix = pending.pop()
            with (
                suppress(FileNotFoundError),
                os.scandir(place.path / prefix) as items,
            ):  # removed meanwhile, or it never existed
                for item in items:
                    name = prefix + item.name
                    if item.is_dir(follow_symlinks=False):
                        pending.append(f"{name}/")
                    elif item.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            found.append(FlyteNativeFile(name, item.stat(follow_symlinks=False).st_size))
    return tuple(sorted(found, key=lambda file: file.name))


@contextmanager
def _opened(place: AttemptPlace, form: FlyteNativeForm, file: FlyteNativeFile) -> Iterator[ReadInto]:
    if isinstance(place, BucketPlace):
        key = place.key if form == "object" else f"{place.key}/{file.name}"
        facts = ObjectFacts(key, file.size, _UNKNOWN, file.etag)
        yield MeteredSource(place.bucket.source(facts), place.cost).read_into
        return
    path = _directory(place).path
    doing = f"cannot read {file.name!r} of {path}"
    with explained(doing):
        descriptor = _open_listed(path, None if form == "object" else file.name)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode) or before.st_size != file.size:
            raise DamagedArchive(f"{doing}: it was listed as a file of {file.size} bytes, and is none")

        def read_into(start: int, target: memoryview) -> None:
            place.cost.add(0, len(target), 0.0)
            with explained(doing):
                while len(target):
                    if not (count := os.preadv(descriptor, [target], start)):
                        raise TruncatedArchive(f"{doing}: it ends while it is being read", where=start)
                    target = target[count:]
                    start += count

        yield read_into
        after = os.fstat(descriptor)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise DamagedArchive(f"{doing}: it was changed while it was being read")
    finally:
        os.close(descriptor)


def _open_listed(path: Path, name: str | None) -> int:
    """Open the file of that name below ``path``, or ``path`` itself. Follows no link below ``path``."""
    try:
        if name is None:
            return os.open(path, _READ)
        *folders, last = name.split("/")
        root = os.open(path, _DIRECTORY)
        try:
            folder = open_folder(root, folders, make=False)
        finally:
            os.close(root)
        try:
            return os.open(last, _READ, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise CheckpointMissing(f"{str(path / (name or ''))!r} was there when it was listed, and is gone") from None


def _stream(read_into: ReadInto, size: int, target: FileIO, on_bytes: Callable[[int], None]) -> None:
    buffer = memoryview(bytearray(min(size, _RUN_BYTES)))
    for start in range(0, size, _RUN_BYTES):
        piece = buffer[: size - start]
        read_into(start, piece)
        write_whole(target, piece)
        on_bytes(len(piece))


def _refresh_bucket(place: BucketPlace, name: str, members: Sequence[Member], form: FlyteNativeForm) -> None:
    facts = place.facts(name)

    def copy(member: Member) -> None:
        target = place.key if form == "object" else f"{place.key}/{member.name}"
        with place.cost.request():
            place.bucket.copy_range(facts, member.offset, member.size, target)

    with ThreadPoolExecutor(_REQUESTS) as pool:
        list(pool.map(copy, members))


def _refresh_directory(place: FilePlace, name: str, members: Sequence[Member], form: FlyteNativeForm) -> None:
    source = place.store.open(name)
    try:
        with explained(f"cannot refresh {place.path}"):
            if form == "object":
                _copy_out(place, source, members[0], place.path.name, folder=None)
                fsync_directory(place.path.parent)
                return
            ensure_directory(place.path)
            root = os.open(place.path, _DIRECTORY)
            try:
                _copy_all(place, source, members, root)
            finally:
                os.close(root)
    finally:
        source.close()


def _copy_all(place: FilePlace, source: ArchiveSource, members: Sequence[Member], root: int) -> None:
    touched: set[tuple[str, ...]] = {()}
    for member in members:
        *folders, last = member.name.split("/")
        folder = open_folder(root, folders, make=True)
        try:
            _copy_out(place, source, member, last, folder=folder)
        finally:
            os.close(folder)
        touched.update(tuple(folders[:depth]) for depth in range(1, len(folders) + 1))
    _make_durable(root, touched)


def _make_durable(root: int, touched: Iterable[tuple[str, ...]]) -> None:
    for folders in touched:
        folder = open_folder(root, folders, make=False)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _copy_out(place: FilePlace, source: ArchiveSource, member: Member, name: str, *, folder: int | None) -> None:
    """Replace one native file in one step; a kill leaves at most a partial file for the sweep."""
    partials = place.store.root / PARTIAL
    ensure_directory(partials)
    spare, descriptor = create_locked(partials, "flyte-native")
    try:
        _copy_bytes(source, member, descriptor)
        os.fsync(descriptor)
        if folder is None:
            os.rename(spare, place.path)
        else:
            os.rename(spare, name, dst_dir_fd=folder)
    except BaseException:
        spare.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _copy_bytes(source: ArchiveSource, member: Member, target: int) -> None:
    whole_pages = member.size // PAGE * PAGE  # those a file system can share instead of copying them
    done = _copy_in_kernel(source, member, 0, whole_pages, target)
    if done == whole_pages:
        done = _copy_in_kernel(source, member, done, member.size, target)
    buffer = memoryview(bytearray(min(member.size - done, _RUN_BYTES)))
    while done < member.size:
        piece = buffer[: member.size - done]
        source.read_into(member.offset + done, piece)
        while len(piece):
            written = os.pwrite(target, piece, done)
            piece = piece[written:]
            done += written


def _copy_in_kernel(source: ArchiveSource, member: Member, start: int, end: int, target: int) -> int:
    """Copy as much of the member as the kernel can, and return the offset up to which it did."""
    descriptor = source.descriptor()
    if descriptor is None or not hasattr(os, "copy_file_range"):
        return start
    while start < end:
        try:
            count = os.copy_file_range(descriptor, target, end - start, member.offset + start, start)
        except OSError as error:
            if error.errno in _NOT_BY_KERNEL:
                return start
            raise
        if not count:
            return start  # a read tells whether the archive ends here
        start += count
    return start


def _remove(place: AttemptPlace, names: Sequence[str]) -> None:
    if isinstance(place, BucketPlace):
        with ThreadPoolExecutor(_REQUESTS) as pool:
            list(pool.map(lambda name: place.bucket.delete(f"{place.key}/{name}"), names))
        return
    path = _directory(place).path
    with explained(f"cannot remove old files from {path}"):
        root = os.open(path, _DIRECTORY)
        try:
            for name in names:
                _unlink(root, name.split("/"))
        finally:
            os.close(root)


def _unlink(root: int, parts: Sequence[str]) -> None:
    """Remove a file, and the folders that are empty without it."""
    is_folder = False
    for depth in reversed(range(len(parts))):
        folder = open_folder(root, parts[:depth], make=False)
        try:
            if is_folder:
                os.rmdir(parts[depth], dir_fd=folder)
            else:
                os.unlink(parts[depth], dir_fd=folder)
            os.fsync(folder)
        except FileNotFoundError:
            return
        except OSError:
            if not is_folder:
                raise
            return  # the folder is not empty
        finally:
            os.close(folder)
        is_folder = True
