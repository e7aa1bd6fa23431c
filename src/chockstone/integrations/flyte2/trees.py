"""Pack a directory into one tar, and unpack it: a checkpoint of Flyte 2 is one object.

Flyte's own checkpoint extracts every name and link without a check. Here a link out of the directory is saved as a
plain file, and refused when it is found in a tar.
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

PAYLOAD: Final = "payload"  # Flyte's name for an object that is not a tar
TREE: Final = "tree.tar.gz"

_LEVEL: Final = 0  # weights do not compress, and Flyte reads stored blocks as well
_COPY_BYTES: Final = 1024**2
_MAX_RATIO: Final = 1100  # more than deflate reaches, so a larger size in a header is false
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
    """Yield the object for ``data`` and its name in an archive. Removes the tar of a directory afterwards."""
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
    """Write a gzipped tar of the content of ``directory``, in Flyte's own format, to ``target``.

    Keeps links that stay inside; a link to a file elsewhere becomes that file. Raises CheckpointError for other links,
    and for a file that changes meanwhile.
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
    """Return None for a socket, which tar cannot store. Raises CheckpointError for what cannot be extracted."""
    info = tar.gettarinfo(path, arcname=name)
    if info is not None and not (info.isreg() or info.isdir() or info.issym() or info.islnk()):  # type: ignore[redundant-expr]  # the stubs know no sockets
        raise CheckpointError(f"cannot save {str(path)!r}: it is neither a file, nor a directory, nor a link")
    return info


def _stays(info: tarfile.TarInfo) -> bool:
    target = os.path.normpath(os.path.join(os.path.dirname(info.name), info.linkname))
    return not os.path.isabs(info.linkname) and target != ".." and not target.startswith("../")


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(f"{str(path)!r} changed while it was saved; save it while no process writes to it")


def unpack(found: Path, directory: Path, *, is_tree: bool | None) -> Path | None:
    """Put the object ``found`` into the private, empty ``directory``, and return the path for ``load``.

    Returns None for an empty object. ``is_tree``: whether the writer made a tar; None: unknown, then an object that
    only begins like a tar is damaged. Never writes outside of ``directory``.
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
    """Decide as Flyte does. A verified object that fails midway is not a tar; an unverified one may be truncated."""
    try:
        return tarfile.is_tarfile(found)
    except Exception:
        if is_sure:
            raise
        return False


def _extract(found: Path, directory: Path) -> None:
    """Extract links last, so that no file is written through one."""
    links: list[tarfile.TarInfo] = []
    limit = os.path.getsize(found) * _MAX_RATIO
    with tarfile.open(found, "r:*") as tar:
        tar.copybufsize = _COPY_BYTES  # type: ignore[attr-defined]  # as above
        tar.extractall(directory, members=_plain(tar, links, limit), filter="data")
        for member in sorted(links, key=tarfile.TarInfo.issym):
            _refuse_behind_link(member, directory)
            tar.extract(member, directory, filter="data")
        while tar.fileobj.read(_COPY_BYTES):  # to reach gzip's checksum at the end
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
        if os.path.isabs(member.name):  # tarfile's filter would treat it as relative
            raise DamagedArchive(f"the member {member.name[:80]!r} has an absolute name")
        if member.issym() or member.islnk():
            links.append(member)
        else:
            yield member


@contextmanager
def _judged(found: Path) -> Iterator[None]:
    """Raise LocalResourceError for errors of our own disk, and DamagedArchive for all other errors of reading a tar."""
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
