"""Directories that ``torch.distributed.checkpoint`` wrote itself, read without running any code of theirs.

Such a directory has a pickle, ``.metadata``, and files of tensors and values, each a zip of ``torch.save``. The pickle
is read by an unpickler that knows DCP's own metadata classes and nothing else. Values are read with
``weights_only=True``. Tensors that one rank wrote whole are views of their file, mapped privately.
"""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import pickle
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple

import torch
from torch.distributed.checkpoint import filesystem, metadata

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, ForeignArchive
from chockstone.integrations.dcp.torch_zip import map_tensor

METADATA: Final = ".metadata"
MAX_METADATA_BYTES: Final = 256 * 1024**2
_DEEP: Final = (MemoryError, OverflowError, RecursionError)  # from a pickle that nests or names too much
_LAYOUTS: Final = {"torch.strided": torch.strided, "torch.sparse_coo": torch.sparse_coo}


def read_dcp_directory(path: str | Path) -> dict[str, Any]:  # Any: nested containers, tensors and plain values
    """The state that ``dcp.save`` wrote to this directory, nested as it was saved, on the CPU.

    Raises ForeignArchive if the directory is none of DCP's, DamagedArchive if a file is missing, short or inconsistent,
    and CheckpointError if a value can only be read by running code that the directory brings along.
    """
    directory = Path(path)
    facts = _read_metadata(directory)
    with _Files(directory) as files:
        flat = {name: _read(name, entry, facts, files) for name, entry in facts.entries.items()}
    state: dict[str, Any] = {}
    for name, value in flat.items():
        _put(state, facts.paths.get(name, (name,)), value)
    return state


def list_dcp_directory(path: str | Path) -> dict[str, tuple[torch.dtype, tuple[int, ...]] | None]:
    """Dtype and shape of each tensor, None for each other value, by flat name. Reads no tensor."""
    return {
        name: (entry.properties.dtype, tuple(entry.size)) if isinstance(entry, metadata.TensorStorageMetadata) else None
        for name, entry in _read_metadata(Path(path)).entries.items()
    }


class _Place(NamedTuple):
    """Where one item stands: so many bytes of a file."""

    file: str
    offset: int
    length: int


class _Facts(NamedTuple):
    """What ``.metadata`` says, checked."""

    entries: dict[str, metadata.TensorStorageMetadata | metadata.BytesStorageMetadata]
    paths: dict[str, tuple[str | int, ...]]
    places: dict[tuple[str, tuple[int, ...] | None], _Place]  # by flat name, and the offsets of a tensor's chunk


def _read_metadata(directory: Path) -> _Facts:
    try:
        with _open(directory / METADATA) as file:
            found = _MetadataUnpickler(io.BytesIO(file.read(MAX_METADATA_BYTES))).load()
    except (FileNotFoundError, NotADirectoryError):
        raise ForeignArchive(
            f"{str(directory)!r} is not a directory of torch.distributed.checkpoint: it has no file {METADATA!r}. Give "
            "the directory that dcp.save wrote to"
        ) from None
    except (pickle.UnpicklingError, OSError) as error:
        raise ForeignArchive(f"{str(directory / METADATA)!r} cannot be read: {error}") from error
    except (AttributeError, EOFError, ImportError, IndexError, KeyError, *_DEEP, TypeError, ValueError) as error:
        raise DamagedArchive(f"{str(directory / METADATA)!r} is damaged: {type(error).__name__}: {error}") from error
    try:
        return _check(found)
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedArchive(f"{str(directory / METADATA)!r} does not make sense: {error}") from error


def _check(found: Any) -> _Facts:
    if not isinstance(found, metadata.Metadata):
        raise TypeError(f"it holds a {type(found).__name__}")
    entries = dict(found.state_dict_metadata)
    for name, entry in entries.items():
        if type(name) is not str or type(entry) not in (metadata.TensorStorageMetadata, metadata.BytesStorageMetadata):
            raise TypeError(f"the entry of {name!r:.100} is a {type(entry).__name__}")
        if isinstance(entry, metadata.TensorStorageMetadata):
            if not isinstance(entry.properties.dtype, torch.dtype):
                raise TypeError(f"the dtype of {name!r:.100} is {entry.properties.dtype!r:.100}")
            _check_chunks(name, tuple(entry.size), [(tuple(c.offsets), tuple(c.sizes)) for c in entry.chunks])
    paths = dict(found.planner_data) if isinstance(found.planner_data, Mapping) else {}
    for name, path in paths.items():
        if not (isinstance(path, tuple) and path and all(type(part) in (str, int) for part in path)):
            raise TypeError(f"the path of {name!r:.100} is {path!r:.100}")
    places = {}
    for index, info in dict(found.storage_data).items():
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"{index.fqn!r:.100} was written through an extension; load it with dcp.load instead")
        if not _is_file_name(info.relative_path) or not (type(info.offset) is type(info.length) is int):
            raise ValueError(f"{index.fqn!r:.100} is said to be in {info.relative_path!r:.100}, outside the directory")
        if min(info.offset, info.length) < 0:
            raise ValueError(f"{index.fqn!r:.100} is said to be in {info.relative_path!r:.100}, outside the directory")
        offsets = None if index.offset is None else tuple(index.offset)
        places[index.fqn, offsets] = _Place(info.relative_path, info.offset, info.length)
    return _Facts(entries, paths, places)


def _is_file_name(path: object) -> bool:
    return isinstance(path, str) and path not in ("", ".", "..") and not {"/", "\0"} & set(path)


def _check_chunks(name: str, shape: tuple[int, ...], chunks: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    for offsets, sizes in chunks:
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        if min((*offsets, *sizes), default=0) < 0 or len(ends) != len(shape) or any(map(int.__gt__, ends, shape)):
            raise ValueError(f"a chunk of {name!r:.100} is not in its tensor of shape {list(shape)}")
    if sum(math.prod(sizes) for _, sizes in chunks) != math.prod(shape):
        raise ValueError(f"the chunks of {name!r:.100} are not the whole tensor of shape {list(shape)}")
    if len({offsets for offsets, sizes in chunks if math.prod(sizes)}) != sum(1 for _, s in chunks if math.prod(s)):
        raise ValueError(f"two chunks of {name!r:.100} are in the same place")


class _MetadataUnpickler(pickle._Unpickler):
    """Knows the classes that DCP's metadata consists of. Any other name raises UnpicklingError.

    In Python, not C: a hostile pickle could set attributes of a class, which all code would see, and name a place in
    the memo that takes all memory.
    """

    stack: list[Any]  # Any: of values that are being built
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # Any: methods, by the number of their opcode

    def load_build(self) -> None:
        if type(self.stack[-2]) not in _BUILT:
            raise pickle.UnpicklingError(f"it sets attributes of {self.stack[-2]!r:.100}, which is no metadata")
        super().load_build()  # type: ignore[misc]  # the checker takes it for the unpickler in C

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:  # Any: a class or a function
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if module.startswith("pathlib") and name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"):
            return _no_path
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is no part of DCP's metadata")
        return known


def _no_path(*_parts: str) -> None:
    """The directory's own path, which is not used."""


def _layout(name: str) -> torch.layout:
    return _LAYOUTS[name]


def _memory_format(kind: type, name: str) -> Any:
    """In place of getattr, with which some versions of Python pickle the members of an enumeration."""
    if kind is not metadata._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"it asks for the attribute {name!r} of {kind!r}")
    return metadata._MEM_FORMAT_ENCODING[name]


_ENUM: Final = metadata._MEM_FORMAT_ENCODING
_METADATA_MODULE: Final = "torch.distributed.checkpoint.metadata"
_FORMER_MODULE: Final = "torch.distributed._shard.sharded_tensor.metadata"  # until torch 2.2
_KNOWN: Final[Mapping[tuple[str, str], Any]] = {
    **{
        (_METADATA_MODULE, name): getattr(metadata, name)
        for name in (*metadata.__all__, "_MEM_FORMAT_ENCODING")
        if isinstance(getattr(metadata, name), type)
    },
    (_FORMER_MODULE, "TensorProperties"): metadata.TensorProperties,
    (_FORMER_MODULE, "MEM_FORMAT_ENCODING"): metadata._MEM_FORMAT_ENCODING,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _layout,
    ("builtins", "getattr"): _memory_format,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}


_BUILT: Final = frozenset(
    kind
    for kind in _KNOWN.values()
    if isinstance(kind, type) and kind.__module__.startswith("torch.distributed.") and kind is not _ENUM
)


class _Files:
    """Mappings of the files of a directory, each made once. A tensor over one keeps it alive."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[str, memoryview] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._mapped.clear()

    def item(self, name: str, place: _Place | None) -> memoryview:
        """The bytes of one item."""
        if place is None:
            raise DamagedArchive(f"{name}: {METADATA!r} does not say where a part of it is")
        if place.file not in self._mapped:
            self._mapped[place.file] = self._map(name, place.file)
        item = self._mapped[place.file][place.offset : place.offset + place.length]
        if len(item) != place.length:
            raise DamagedArchive(f"{name}: the file {place.file!r} is shorter than {METADATA!r} says")
        return item

    def _map(self, name: str, file_name: str) -> memoryview:
        try:
            with _open(self._directory / file_name) as file:
                size = file.seek(0, io.SEEK_END)
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b"")
        except FileNotFoundError:
            raise DamagedArchive(f"{name}: the file {file_name!r} is missing in {str(self._directory)!r}") from None
        except OSError as error:
            raise DamagedArchive(f"{name}: the file {file_name!r} cannot be read: {error.strerror}") from error


def _open(path: Path) -> BinaryIO:
    """A regular file, and no link to one elsewhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _read(name: str, entry: Any, facts: _Facts, files: _Files) -> Any:
    if isinstance(entry, metadata.BytesStorageMetadata):
        return _load(name, files.item(name, facts.places.get((name, None))))
    shape, dtype = tuple(entry.size), entry.properties.dtype
    chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
    parts = ((*chunk, _read_chunk(name, chunk[0], facts, files)) for chunk in chunks if math.prod(chunk[1]))
    return _assemble(name, shape, dtype, parts)


def _read_chunk(name: str, offsets: tuple[int, ...], facts: _Facts, files: _Files) -> torch.Tensor:
    item = files.item(name, facts.places.get((name, offsets)))
    mapped = map_tensor(item)
    tensor = _load(name, item) if mapped is None else mapped
    if not isinstance(tensor, torch.Tensor):
        raise DamagedArchive(f"{name}: its file holds a {type(tensor).__name__}, not a tensor")
    return tensor


def _assemble(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    parts: Iterator[tuple[tuple[int, ...], tuple[int, ...], torch.Tensor]],
) -> torch.Tensor:
    """The whole tensor. A part that is the whole is returned as it is."""
    whole: torch.Tensor | None = None
    for offsets, sizes, part in parts:
        if tuple(part.shape) != sizes or part.dtype != dtype:
            raise DamagedArchive(
                f"{name}: its file holds {part.dtype}{list(part.shape)} where {METADATA!r} has {dtype}{list(sizes)}"
            )
        if sizes == shape:
            return part.detach()
        if whole is None:
            whole = torch.zeros(shape, dtype=dtype)  # not what was in memory, if chunks overlap
        target = whole
        for dimension, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            target = target.narrow(dimension, offset, size)
        target.copy_(part)
    return torch.empty(shape, dtype=dtype) if whole is None else whole


def _load(name: str, item: memoryview) -> Any:
    try:
        return torch.load(io.BytesIO(item), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{name}: this value can only be read by running code that the directory brings along, which is refused. "
            "Save it again as numbers, strings, containers or tensors"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise DamagedArchive(f"{name}: its file cannot be read: {type(error).__name__}: {str(error)[:300]}") from error


def _put(state: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    """Put a value into nested dicts and lists. A number in the path is a place in a list."""
    container: Any = state
    for part, following in pairwise(path):
        container = _enter(container, part, dict if type(following) is str else list)
    if isinstance(container, list):
        _extend(container, path[-1])
    container[path[-1]] = value


def _enter(container: Any, part: Any, kind: Callable[[], Any]) -> Any:
    if isinstance(container, list):
        _extend(container, part)
        if container[part] is None:
            container[part] = kind()
        inner = container[part]
    else:
        inner = container.setdefault(part, kind())
    if not isinstance(inner, dict | list):
        raise DamagedArchive(f"{METADATA!r} names values both at and below {part!r:.100}")
    return inner


def _extend(container: list[Any], index: object) -> None:
    if not isinstance(index, int) or not 0 <= index < _MAX_ITEMS:
        raise DamagedArchive(f"{METADATA!r} names the place {index!r:.100} of a list")
    container.extend([None] * (index + 1 - len(container)))


_MAX_ITEMS: Final = 10_000_000
