"""File archives: checkpoints of files instead of a state.

The format is the same, without ``state.json``: every tool that reads, verifies or exports archives takes them. Files
are streamed both ways and never held in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, SaveAbandoned
from chockstone.checkpoints.format.layout import check_members
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.restoring.export import write_members
from chockstone.checkpoints.saving.file_image import FileImage, MemberSource, SourceFile
from chockstone.checkpoints.saving.request import copy_metadata
from chockstone.checkpoints.saving.writer import Write
from chockstone.checkpoints.stores.posix import local_errors
from chockstone.checkpoints.stores.store import Store

FILES: Final = "files"
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})  # Any: plain JSON of the caller's


@dataclass(frozen=True, slots=True)
class SavedFiles:
    name: str
    size_bytes: int  # of the archive
    seal: str  # sha256 of its manifest, which holds the digests of all the rest


def write_files(
    store: Store,
    name: str,
    files: Mapping[str, Path | bytes | MemberSource],
    *,
    kind: str = FILES,
    step: int | None = None,
    metadata: Mapping[str, Any] = _NONE,
    created_at: datetime,
    on_bytes: Callable[[int], None] = lambda _: None,
    on_plan: Callable[[int], None] = lambda _: None,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> SavedFiles:
    """Commit an archive of these files under a name that is not taken. Durable on return; nothing is
    visible when it raises.

    Keys are the members' names. A path must be that of a regular file and not of a link: ``list_files``
    follows links in a folder. A file whose size, mtime or inode is not the same from
    beginning to end is a ``CheckpointError``. ``on_plan`` is called once, with the size of the archive, before
    its first byte is written, and may raise; ``on_bytes`` is called from several threads.
    """
    if why := check_members([(member, 0) for member in files]):
        raise CheckpointError(f"cannot save these files: {why}")
    contents = {member: _source_of(content) for member, content in files.items()}
    sizes = [
        (member, len(content) if isinstance(content, bytes) else content.size) for member, content in contents.items()
    ]
    manifest = Manifest(kind, step, created_at, members=tuple(sizes), metadata=copy_metadata(metadata))
    manifest.check()
    image = FileImage(manifest, manifest.plan(), contents)
    on_plan(image.layout.size)
    sink = store.begin(name, image.layout.size)
    try:
        write = Write(image, sink, on_bytes=on_bytes, is_abandoned=is_abandoned)
        write.run()
        write.finish()
        image.check_unchanged()
        if is_abandoned():
            raise SaveAbandoned(f"the save of {name!r} was abandoned; nothing of it is visible")
        sink.commit(overwrite=False)
    except BaseException:
        sink.abort()
        raise
    return SavedFiles(name, image.layout.size, image.seal)


def _source_of(content: Path | bytes | MemberSource) -> MemberSource | bytes:
    if isinstance(content, Path):
        return SourceFile.look_at(content)
    return bytes(content) if isinstance(content, bytes | bytearray | memoryview) else content


def list_files(directory: Path) -> dict[str, Path]:
    """The files below a folder by relative name, as ``write_files`` takes them.

    A link stands for what it points to, wherever that is, as it does for ``shutil.copytree`` and so for
    Flyte itself; one that points to nothing, or to a folder around itself, is a ``CheckpointError``, and so is
    anything that is neither file nor folder. Folders without files leave no trace.
    """
    found: dict[str, Path] = {}
    with local_errors(f"cannot list {str(directory)!r}"):
        _gather(directory, "", (), found)
    return dict(sorted(found.items()))


def _gather(folder: Path, prefix: str, around: tuple[str, ...], found: dict[str, Path]) -> None:
    real = os.path.realpath(folder)
    if real in around:
        raise CheckpointError(f"{str(folder)!r} is a link to a folder that it is in itself; remove it")
    with os.scandir(folder) as items:
        for item in items:
            path = Path(item.path)
            if path.is_dir():  # also False for a link that leads nowhere, or in a circle
                _gather(path, f"{prefix}{item.name}/", (*around, real), found)
            elif path.is_file():
                found[prefix + item.name] = Path(os.path.realpath(path)) if item.is_symlink() else path
            elif item.is_symlink():
                raise CheckpointError(f"{str(path)!r} is a link to nothing that can be saved; remove it")
            else:
                raise CheckpointError(f"{str(path)!r} is neither a file nor a folder; move it elsewhere")


def extract_files(
    archive: Archive,
    directory: Path,
    names: Sequence[str] | None = None,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write members, all or those named, as new files into a directory that only the caller knows.

    Bytes are verified before they are written. When it raises, the directory holds a part: remove it.
    An error of this machine's disk is ``LocalResourceError``; only damage of the archive is a damage error. The files
    are not made durable: after a crash they can be extracted again.
    """
    for name in names or ():
        if name not in archive.members:
            raise DamagedArchive(f"the archive should hold {name!r:.90}, and does not")
    wanted = set(archive.members if names is None else names)
    chosen = [member for name, member in archive.members.items() if name in wanted]
    with local_errors(f"cannot extract files to {str(directory)!r}"):
        write_members(archive, chosen, directory, on_bytes=on_bytes, durable=False)
