"""Trees: what Flyte 2 keeps for a checkpoint is one object, and a directory becomes one by way of tar.

Stock flyte extracts whatever it finds, wherever its names and links lead. Here what cannot stay inside the
tree is turned into a plain file when it is saved, and refused when it is found.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, LocalResourceError

PAYLOAD: Final = "payload"  # the name that stock flyte gives to an object that is no tar
TREE: Final = "tree.tar.gz"

_LEVEL: Final = 0  # weights do not shrink, and stock readers take stored blocks like any others
_COPY_BYTES: Final = 1024**2
_MAX_RATIO: Final = 1100  # deflate cannot do better; only a hole that a header claims can
_MAX_MEMBERS: Final = 1_000_000
_OUR_OWN: Final = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ENOMEM,
}


@contextmanager
def packed(data: Path | bytes) -> Iterator[tuple[str, Path | bytes]]:
    """The object for ``data`` and its name in an archive. A packed directory is gone from disk afterwards."""
    if isinstance(data, bytes):
        yield PAYLOAD, data
    elif not data.is_dir():
        yield PAYLOAD, data.resolve()
    else:
        with TemporaryDirectory(prefix="chockstone-flyte-") as folder:
            target = Path(folder) / TREE
            pack(data, target)
            yield TREE, target


def pack(directory: Path, target: Path) -> None:
    """Write a gzipped tar of what is in ``directory``, as stock flyte does, to ``target``.

    Links that stay inside are kept; a link to a file elsewhere becomes that file. CheckpointError names what can be
    neither, and a file that changed meanwhile.
    """
    with tarfile.open(target, "w:gz", compresslevel=_LEVEL) as tar:
        tar.copybufsize = _COPY_BYTES  # type: ignore[attr-defined]  # an option that the stubs leave out
        for name in _below(directory):
            _add(tar, directory, name)


def _below(directory: Path, prefix: str = "") -> Iterator[str]:
    for name in sorted(os.listdir(directory / prefix)):
        path = f"{prefix}{name}"
        yield path
        if (directory / path).is_dir() and not (directory / path).is_symlink():
            yield from _below(directory, f"{path}/")


def _add(tar: tarfile.TarFile, directory: Path, name: str) -> None:
    path = directory / name
    info = _describe(tar, path, name)
    if info is None:
        return
    if info.issym() and not _stays(info):
        path = path.resolve()
        info = _describe(tar, path, name) if path.is_file() else None
        if info is None:
            raise CheckpointError(
                f"cannot save {str(directory / name)!r}: it is a link out of the directory, and not to a file; "
                "replace it by what it leads to"
            )
    if not info.isreg():
        tar.addfile(info)
        return
    with path.open("rb") as file:
        try:
            tar.addfile(info, file)
        except OSError as error:
            if error.errno is not None:
                raise
            raise _changed(directory / name) from None  # it ended before the size it had
        after = os.fstat(file.fileno())
    if (after.st_size, after.st_mtime) != (info.size, info.mtime):
        raise _changed(directory / name)


def _describe(tar: tarfile.TarFile, path: Path, name: str) -> tarfile.TarInfo | None:
    """None for a socket, which tar does not know. What stock would store and nobody extract is refused."""
    info = tar.gettarinfo(path, arcname=name)
    if info is not None and not (info.isreg() or info.isdir() or info.issym() or info.islnk()):  # type: ignore[redundant-expr]  # the stubs know no sockets
        raise CheckpointError(f"cannot save {str(path)!r}: it is neither a file, nor a directory, nor a link")
    return info


def _stays(info: tarfile.TarInfo) -> bool:
    target = os.path.normpath(os.path.join(os.path.dirname(info.name), info.linkname))
    return not os.path.isabs(info.linkname) and target != ".." and not target.startswith("../")


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(f"{str(path)!r} changed while it was saved; save it when nobody writes to it")


def unpack(found: Path, directory: Path, *, is_tree: bool | None) -> Path | None:
    """Put the object ``found`` into ``directory``, empty and private, as stock flyte does; returns what ``load`` gives.

    None for an object without bytes. ``is_tree`` says what the writer made of it; None if nobody knows, and then an
    object that only begins like a tar is damaged. Whatever is raised, nothing was written outside of ``directory``.
    """
    if os.path.getsize(found) == 0:
        return None
    with _judged(found):
        if is_tree or _looks_like_tar(found, is_sure=is_tree is None):
            _extract(found, directory)
            return directory
        shutil.move(found, directory / PAYLOAD)
        return directory / PAYLOAD


def _looks_like_tar(found: Path, *, is_sure: bool) -> bool:
    """As stock asks. A whole object that fails half way is some other kind; one that may be cut off is damaged."""
    try:
        return tarfile.is_tarfile(found)
    except Exception:
        if is_sure:
            raise
        return False


def _extract(found: Path, directory: Path) -> None:
    """Links come last: while files are written there is none to follow."""
    links: list[tarfile.TarInfo] = []
    limit = os.path.getsize(found) * _MAX_RATIO
    with tarfile.open(found, "r:*") as tar:
        tar.copybufsize = _COPY_BYTES  # type: ignore[attr-defined]  # as above
        tar.extractall(directory, members=_plain(tar, links, limit), filter="data")
        for member in sorted(links, key=tarfile.TarInfo.issym):
            _refuse_behind_link(member, directory)
            tar.extract(member, directory, filter="data")
        while tar.fileobj.read(_COPY_BYTES):  # gzip's checksum stands at the very end
            pass


def _refuse_behind_link(member: tarfile.TarInfo, directory: Path) -> None:
    inside = os.path.normpath(os.path.dirname(member.name))
    if os.path.realpath(directory / inside) != os.path.normpath(os.path.join(os.path.realpath(directory), inside)):
        raise DamagedArchive(f"{member.name!r} lies behind a link")


def _plain(tar: tarfile.TarFile, links: list[tarfile.TarInfo], limit: int) -> Iterator[tarfile.TarInfo]:
    total = 0
    for count, member in enumerate(tar):
        total += member.size
        if total > limit or count > _MAX_MEMBERS:
            raise DamagedArchive(f"at {member.name!r} it claims {total} bytes, more than its own could hold")
        if os.path.isabs(member.name):  # tarfile's filter would take it as a relative one
            raise DamagedArchive(f"the member {member.name[:80]!r} has an absolute name")
        if member.issym() or member.islnk():
            links.append(member)
        else:
            yield member


@contextmanager
def _judged(found: Path) -> Iterator[None]:
    """Our own disk is never the candidate's fault; everything else that reading a tar can raise is."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        if error.errno in _OUR_OWN:
            raise LocalResourceError(
                f"cannot unpack {found}: {error.strerror}; make room where temporary files go"
            ) from error
        raise DamagedArchive(f"the object is no whole tar: {error}") from error
    except Exception as error:  # gzip, zlib, lzma, tarfile and struct each have their own
        raise DamagedArchive(f"the object is no whole tar: {type(error).__name__}: {error}") from error
