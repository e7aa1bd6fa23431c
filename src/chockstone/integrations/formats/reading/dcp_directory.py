"""Directories that ``torch.distributed.checkpoint`` wrote itself, read without running any code of theirs.

Such a directory has a pickle, ``.metadata``, and files of tensors and values, each a zip of ``torch.save``. Of the
pickle, records are read that stand for DCP's own classes, and checked. Tensors that one rank wrote whole are views of
their file, mapped privately.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, Final, NamedTuple

from chockstone.checkpoints.errors import ImportRefused
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.extras import require
from chockstone.integrations.formats.pickles.pickled_arrays import resolve_arrays
from chockstone.integrations.formats.pickles.torch_names import set_of, size_of
from chockstone.integrations.formats.pickles.torch_zip import TorchZip
from chockstone.integrations.formats.pickles.unpickler import Builder, ForeignNames, PlainUnpickler, StandIn
from chockstone.integrations.formats.reading.limits import StateLimits
from chockstone.integrations.formats.reading.mapped_files import SourceDirectory, resolve

METADATA: Final = ".metadata"
SUFFIX: Final = ".distcp"
_MAX_METADATA_BYTES: Final = 256 * 1024**2
_MAX_CUTS: Final = 8  # dimensions that the shards of one tensor divide
_METADATA_MODULE: Final = "torch.distributed.checkpoint.metadata"
_FORMER_MODULE: Final = "torch.distributed._shard.sharded_tensor.metadata"  # until torch 2.2
_CLASSES: Final = (
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
)

StatePath = tuple[str | int, ...]  # of a value: keys and places from the top of the state


class DcpChunk(NamedTuple):
    """A part of a tensor that one rank wrote."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class DcpTensor(NamedTuple):
    """What a directory says of one tensor."""

    dtype: Any  # Any: torch.dtype; torch is imported on use
    shape: tuple[int, ...]
    chunks: tuple[DcpChunk, ...]


class _Place(NamedTuple):
    """Where one item is: so many bytes of a file."""

    file: str
    offset: int
    length: int


class _Facts(NamedTuple):
    """What ``.metadata`` says, checked."""

    entries: dict[str, DcpTensor | None]  # by flat name; None: a value that is no tensor
    paths: dict[str, StatePath]
    places: dict[tuple[str, tuple[int, ...] | None], _Place]  # by flat name, and the offsets of a tensor's chunk


def read_dcp_directory(path: str | Path) -> dict[str, Any]:  # Any: nested containers, tensors and plain values
    """The state that ``dcp.save`` wrote to this directory, nested as it was saved, on the CPU.

    Raises ImportRefused if the directory is none of DCP's, if a file is missing, short or inconsistent, and if a value
    can only be read by running code that the directory brings along.
    """
    return read_state(SourceDirectory(resolve(Path(path))))


def list_dcp_directory(path: str | Path) -> dict[str, DcpTensor | None]:
    """Dtype, shape and chunks of each tensor, None for each other value, by flat name. Reads no tensor."""
    return _read_metadata(SourceDirectory(resolve(Path(path)))).entries


def read_state(directory: SourceDirectory) -> dict[str, Any]:
    """As ``read_dcp_directory``. The directory tells afterwards whether a file that was read has changed."""
    require("torch", f"the import of {directory.name!r}")
    facts = _read_metadata(directory)
    source_bytes = sum(directory.open(name).size for name in sorted({place.file for place in facts.places.values()}))
    limits = StateLimits(directory.name, source_bytes)
    limits.claim(sum(entry.dtype.itemsize * math.prod(entry.shape) for entry in facts.entries.values() if entry))
    state = _Nested(len(facts.entries))
    for name, entry in facts.entries.items():
        value = _read_value(name, facts, directory) if entry is None else _read_tensor(name, entry, facts, directory)
        state.put(facts.paths.get(name, (name,)), limits.rebuild(value, resolve_arrays))
    return state.top


class _Record(StandIn):
    """An object of one of DCP's classes: its name, and the state that the pickle gives it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def field(self, name: str, default: Any = None) -> Any:
        return self.state.get(name, default) if isinstance(self.state, dict) else default


def _names() -> dict[str, Any]:
    """The names that DCP's metadata consists of."""
    import torch

    def record(kind: str) -> Builder:
        return Builder(lambda: _Record(kind))

    return {
        **{f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
        **{f"{_METADATA_MODULE}.{name}": record(name) for name in _CLASSES},
        f"{_METADATA_MODULE}._MEM_FORMAT_ENCODING": _NOTHING,
        f"{_FORMER_MODULE}.MEM_FORMAT_ENCODING": _NOTHING,
        f"{_FORMER_MODULE}.TensorProperties": record("TensorProperties"),
        "torch.distributed.checkpoint.filesystem._StorageInfo": record("_StorageInfo"),
        "torch.Size": Builder(size_of),
        "torch.serialization._get_layout": _NOTHING,
        "builtins.getattr": _NOTHING,  # with which some versions of Python pickle the members of an enumeration
        "builtins.set": Builder(set_of),
        **{f"pathlib.{kind}": _NOTHING for kind in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")},
        **{f"pathlib._local.{kind}": _NOTHING for kind in ("PosixPath", "WindowsPath")},
    }


_NOTHING: Final = Builder(lambda *_: None)  # of what is not used: layouts, memory formats, the directory's own path


def _read_metadata(directory: SourceDirectory) -> _Facts:
    if METADATA not in directory:
        raise ImportRefused(
            f"{directory.name!r} is not a directory of torch.distributed.checkpoint: it has no file {METADATA!r}. Give "
            "the directory that dcp.save wrote to"
        )
    require("torch", f"the import of {directory.name!r}")
    content = directory.open(METADATA).read(0, _MAX_METADATA_BYTES)
    try:
        return _check(PlainUnpickler(content, _names()).load())
    except ForeignNames as error:
        raise _refused(
            directory, f"{METADATA!r} refers to {error.names[0]}, which is no part of DCP's metadata"
        ) from error
    except Exception as error:  # whatever a hostile pickle can provoke; kept as the cause
        raise _refused(directory, f"{METADATA!r} is damaged: {type(error).__name__}: {str(error)[:200]}") from error


def _refused(directory: SourceDirectory, why: str) -> ImportRefused:
    return ImportRefused(f"{directory.name!r} cannot be read: {why}. Copy it again, or import an older checkpoint")


def _check(found: Any) -> _Facts:
    if not _is_a(found, "Metadata"):
        raise TypeError(f"it holds {short_repr(found)}")
    entries = {_text(name): _entry(name, entry) for name, entry in _dict(found.field("state_dict_metadata")).items()}
    planned = found.field("planner_data")
    paths = {_text(name): _path(name, path) for name, path in planned.items()} if isinstance(planned, dict) else {}
    places = {}
    for index, info in _dict(found.field("storage_data")).items():
        if not _is_a(index, "MetadataIndex") or not _is_a(info, "_StorageInfo"):
            raise TypeError("it names no places of its items")
        name, offset = _text(index.field("fqn")), index.field("offset")
        places[name, None if offset is None else _counts(offset)] = _place(name, info)
    _check_apart(places.values())
    return _Facts(entries, paths, places)


def _check_apart(places: Iterable[_Place]) -> None:
    """Raise ValueError if two items share bytes: a small file could stand for any number of values."""
    for one, other in pairwise(sorted(places)):
        if one.file == other.file and one.offset + one.length > other.offset:
            raise ValueError(f"two items are in the same place of {one.file!r:.100}")


def _entry(name: str, entry: Any) -> DcpTensor | None:
    import torch

    if _is_a(entry, "BytesStorageMetadata"):
        return None
    properties = entry.field("properties") if _is_a(entry, "TensorStorageMetadata") else None
    state = properties.state if properties is not None and _is_a(properties, "TensorProperties") else None
    if type(state) is not tuple or not state or not isinstance(state[0], torch.dtype):
        raise TypeError(f"the entry of {name!r:.100} is no tensor and no value")
    shape = _counts(entry.field("size"))
    chunks = tuple(
        DcpChunk(_counts(chunk.field("offsets")), _counts(chunk.field("sizes"))) for chunk in entry.field("chunks")
    )
    check_cover(name, shape, chunks)
    return DcpTensor(state[0], shape, chunks)


def check_cover(name: str, shape: tuple[int, ...], chunks: Iterable[DcpChunk]) -> None:
    """Raise ValueError unless every element of a tensor is in exactly one chunk. Takes a time linear in the chunks.

    Each corner of a box counts 1 or -1, in turns along each edge. The sum over all chunks is that of the whole tensor
    if and only if the chunks are the whole, each element once: their corners are the mixed derivative of how often
    each element is covered.
    """
    whole = DcpChunk((0,) * len(shape), shape)
    boxes = [chunk for chunk in chunks if math.prod(chunk.sizes)]
    for offsets, sizes in boxes:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise ValueError(f"a chunk of {name!r:.100} has another number of dimensions than its tensor")
        if any(offset + size > extent for offset, size, extent in zip(offsets, sizes, shape, strict=True)):
            raise ValueError(f"a chunk of {name!r:.100} is not in its tensor of shape {list(shape)}")
    cut = [axis for axis in range(len(shape)) if any(box.sizes[axis] != shape[axis] for box in boxes)]
    if len(cut) > _MAX_CUTS:
        raise ValueError(f"the chunks of {name!r:.100} divide {len(cut)} dimensions")
    if math.prod(shape) and _corners(boxes, cut) != _corners([whole], cut):
        raise ValueError(f"the chunks of {name!r:.100} are not the whole tensor of shape {list(shape)}, each part once")


def _corners(boxes: Iterable[DcpChunk], axes: list[int]) -> dict[tuple[int, ...], int]:
    """The signed corners of boxes, in the dimensions that are divided. Those that add up to nothing are left out."""
    corners: Counter[tuple[int, ...]] = Counter()
    for offsets, sizes in boxes:
        for ends in itertools.product((False, True), repeat=len(axes)):
            corner = tuple(
                offsets[a] + sizes[a] if is_end else offsets[a] for a, is_end in zip(axes, ends, strict=True)
            )
            corners[corner] += -1 if sum(ends) % 2 else 1
    return {corner: count for corner, count in corners.items() if count}


def _place(name: str, info: _Record) -> _Place:
    file, offset, length = info.field("relative_path"), info.field("offset"), info.field("length")
    if info.field("transform_descriptors"):
        raise ValueError(f"{name!r:.100} was written through an extension; load it with dcp.load instead")
    if type(file) is not str or file in ("", ".", "..") or {"/", "\0"} & set(file):
        raise ValueError(f"{name!r:.100} is said to be in {short_repr(file)}, outside the directory")
    return _Place(file, *_counts((offset, length)))


def _path(name: str, path: Any) -> StatePath:
    if not (type(path) is tuple and path and len(path) < 100 and all(type(part) in (str, int) for part in path)):
        raise TypeError(f"the path of {name!r:.100} is {short_repr(path)}")
    return path


def _is_a(value: Any, kind: str) -> bool:
    return isinstance(value, _Record) and value.kind == kind


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"a name is {short_repr(value)}")
    return value


def _dict(value: Any) -> Mapping[Any, Any]:
    if type(value) is not dict:
        raise TypeError(f"{short_repr(value)} is no dict")
    return value


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(size_of(value if isinstance(value, tuple) else None))


def _item(name: str, offsets: tuple[int, ...] | None, facts: _Facts, directory: SourceDirectory) -> Bytes:
    """The bytes of one item."""
    place = facts.places.get((name, offsets))
    if place is None:
        raise _refused(directory, f"{METADATA!r} does not say where a part of {name!r:.100} is")
    item = directory.open(place.file).memory[place.offset : place.offset + place.length]
    if len(item) != place.length:
        raise _refused(directory, f"the file {place.file!r} is shorter than {METADATA!r} says")
    return item


def _read_value(name: str, facts: _Facts, directory: SourceDirectory) -> Any:
    return TorchZip(name, _item(name, None, facts, directory)).load()


def _read_tensor(name: str, entry: DcpTensor, facts: _Facts, directory: SourceDirectory) -> Any:
    """The whole tensor. A part that is the whole is returned as it is."""
    import torch

    dtype, shape, chunks = entry
    whole: Any = None
    for offsets, sizes in chunks:
        if not math.prod(sizes):
            continue
        part = TorchZip(name, _item(name, offsets, facts, directory)).load()
        if not isinstance(part, torch.Tensor) or part.dtype != dtype or tuple(part.shape) != sizes:
            found = f"{part.dtype}{list(part.shape)}" if isinstance(part, torch.Tensor) else type(part).__name__
            raise _refused(directory, f"the file of {name!r:.100} holds {found}, not {dtype}{list(sizes)}")
        if sizes == shape:
            return part.detach()
        whole = torch.empty(shape, dtype=dtype) if whole is None else whole
        target = whole
        for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            target = target.narrow(axis, offset, size)
        target.copy_(part)
    return torch.empty(shape, dtype=dtype) if whole is None else whole


class _Nested:
    """Nested dicts and lists, put together from paths. A number in a path is a place in a list.

    All lists together have at most as many places as there are values: DCP names a value for each.
    """

    def __init__(self, places: int) -> None:
        self.top: dict[str, Any] = {}
        self._places = places

    def put(self, path: StatePath, value: Any) -> None:
        container: Any = self.top
        for part, following in pairwise(path):
            inner = self._at(container, part)
            if inner is None:
                inner = container[part] = {} if type(following) is str else []
            elif not isinstance(inner, dict | list):
                raise self._mismatch(part)
            container = inner
        if self._at(container, path[-1]) is not None:
            raise self._mismatch(path[-1])
        container[path[-1]] = value

    def _at(self, container: Any, part: str | int) -> Any:
        """What is at a key or a place; None where there is nothing yet."""
        if isinstance(container, dict):
            return container.get(part)
        missing = part + 1 - len(container) if type(part) is int and part >= 0 else self._places + 1
        if missing > self._places:
            raise ImportRefused(f"{METADATA!r} names the place {part!r:.100} of a list that has fewer")
        if missing > 0:
            self._places -= missing
            container.extend([None] * missing)
        return container[part]

    def _mismatch(self, part: object) -> ImportRefused:
        return ImportRefused(f"{METADATA!r} names two values at {part!r:.100}, or one below the other")
