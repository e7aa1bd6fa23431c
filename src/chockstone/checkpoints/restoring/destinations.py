"""Destinations: the memory that restored tensors are read into, of the target or newly allocated."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.format.byte_runs import ByteRun, box_runs
from chockstone.checkpoints.format.dtypes import BY_NAME, BY_NUMPY_NAME, BY_TORCH_NAME, ML_DTYPES, Dtype, numpy_dtype
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.checkpoints.format.safetensors_header import SUFFIX
from chockstone.checkpoints.format.shards import Pieces, local_tensors_of, shards_of
from chockstone.checkpoints.format.tree import TensorReference
from chockstone.checkpoints.reading.archive import Archive, ArchiveTensor
from chockstone.checkpoints.reading.reader import FileMapping, ReadTarget, read_targets
from chockstone.extras import require


class RestoreDestinations:
    """Collects which bytes must be read into which memory. Nothing changes before ``targets`` are read."""

    def __init__(self, archive: Archive, mapping: FileMapping | None = None) -> None:
        """With a ``mapping``, tensors that must be made are views of it."""
        self._archive = archive
        self._mapping = mapping
        self.spans: list[tuple[int, int]] = []  # of the mapping, to be verified
        self._indices: dict[str, dict[str, ArchiveTensor]] = {}
        self._made: dict[tuple[str, str, str], Any] = {}
        self._plain_types, self._stored_names = _plain_tensors()
        self.targets: list[ReadTarget] = []
        self.copies: list[Callable[[], object]] = []  # to be run after reading

    def read(self) -> None:
        """Read everything that was collected."""
        if self.targets:
            read_targets(self._archive, self.targets)

    def find(self, reference: TensorReference) -> tuple[ArchiveTensor, Dtype, tuple[int, ...]]:
        """The stored tensor behind a reference. State and tensors come from one hostile file."""
        member = reference.group + SUFFIX
        tensor = self._index(reference.group).get(reference.key)
        if tensor is None:
            raise DamagedArchive(f"state.json speaks of a tensor {reference.key!r} that is not in {member!r}")
        if reference.dtype is None and reference.form == "torch":
            return tensor, BY_NAME[tensor.entry.dtype], tensor.entry.shape
        dtype = BY_NAME.get(reference.dtype or tensor.entry.dtype)
        shape = tensor.entry.shape if reference.shape is None else reference.shape
        if dtype is None or min(shape, default=0) < 0 or dtype.itemsize * math.prod(shape) != tensor.entry.size:
            raise DamagedArchive(f"state.json describes tensor {reference.key!r} of {member!r} wrongly")
        if reference.form == "numpy.scalar" and shape != ():
            raise DamagedArchive(f"state.json describes tensor {reference.key!r} of {member!r} wrongly: no scalar")
        if reference.form != "torch" and dtype.numpy_name is None and dtype.torch_name not in ML_DTYPES:
            raise DamagedArchive(f"state.json calls tensor {reference.key!r} of {member!r} a numpy {dtype.name}")
        return tensor, dtype, shape

    def _index(self, group: str) -> dict[str, ArchiveTensor]:
        found = self._indices.get(group)
        if found is None:
            member = group + SUFFIX
            if member not in self._archive.members:
                raise DamagedArchive(f"state.json speaks of a member {member!r} that is not there")
            found = self._indices[group] = self._archive.tensors(member)
        return found

    def use_plain(self, reference: TensorReference, live: Any) -> int | None:
        """As ``find``, ``fits`` and ``use`` in one, for a whole torch tensor whose bytes are contiguous in host memory.

        Returns its size in bytes. None: it is another kind of tensor, or does not fit, and nothing was done.
        """
        if type(live) not in self._plain_types or reference.dtype is not None or reference.form != "torch":
            return None
        tensor = self._index(reference.group).get(reference.key)
        if tensor is None:
            return None
        _, entry, offset = tensor
        if self._stored_names.get(live.dtype) != entry.dtype or live.shape != entry.shape:
            return None
        if not (live.is_cpu and live.is_contiguous()):
            return None
        self.targets.append(ReadTarget(offset, entry.size, live.data_ptr(), live))
        return entry.size

    def use(self, live: Any, tensor: ArchiveTensor) -> None:
        """Read ``tensor`` into a tensor of the target; of a sharded one, the shards of this process."""
        if (shards := shards_of(live)) is not None:
            for box, part in zip(shards.boxes, local_tensors_of(live), strict=False):  # no box: an empty part
                self.use_box(box_runs(shards.shape, box, part.element_size()), part, tensor.offset)
            return
        if _is_plain(live):
            self.targets.append(_target(tensor.offset, live))
            return
        if isinstance(live, np.ndarray):
            array = np.empty(live.shape, dtype=live.dtype)
            self.targets.append(_target(tensor.offset, array))
            self.copies.append(lambda: np.copyto(live, array))
            return
        spare = _spare(live)
        self.targets.append(_target(tensor.offset, spare))
        self.copies.append(lambda: live.detach().copy_(spare))

    def use_box(self, runs: Iterable[ByteRun], part: Any, offset: int) -> None:
        """Read these runs of a tensor that starts at ``offset`` into ``part``, one after the other."""
        place = part if _is_plain(part) else _spare(part)
        if place is not part:
            self.copies.append(lambda: part.detach().copy_(place))
        runs = list(runs)
        _, size, address, owner = _target(offset, place)
        if sum(run.size for run in runs) != size:
            raise ValueError(f"{sum(run.size for run in runs)} bytes are to be read into a tensor of {size} bytes")
        for run in runs:
            for start in range(offset + run.start, offset + run.start + run.stride * run.times, run.stride):
                self.targets.append(ReadTarget(start, run.length, address, owner))
                address += run.length

    def make(self, reference: TensorReference, tensor: ArchiveTensor, dtype: Dtype, shape: tuple[int, ...]) -> Any:
        """Read ``tensor`` into a new tensor; a tied one is made once."""
        key = (reference.group, reference.key, reference.form)
        if key not in self._made:
            self._made[key] = self._make(reference, tensor, dtype, shape)
        return self._made[key]

    def _make(self, reference: TensorReference, tensor: ArchiveTensor, dtype: Dtype, shape: tuple[int, ...]) -> Any:
        if reference.form == "numpy.scalar":  # immutable, so it is read at once
            content = self._archive.read_range(tensor.offset, tensor.entry.size)
            return np.frombuffer(content, dtype=numpy_dtype(dtype, reference.key))[0]
        made: Any
        mapped = self._map(tensor, dtype)
        if reference.form == "torch":
            require("torch", f"tensor {reference.key!r} of {reference.group!r}")
            import torch

            if mapped is not None:
                return torch.from_numpy(mapped).view(getattr(torch, dtype.torch_name)).view(shape)
            made = torch.empty(shape, dtype=getattr(torch, dtype.torch_name))
        else:
            if mapped is not None:
                return mapped.view(numpy_dtype(dtype, reference.key)).reshape(shape)
            made = np.empty(shape, dtype=numpy_dtype(dtype, reference.key))
        self.targets.append(_target(tensor.offset, made))
        return made

    def _map(self, tensor: ArchiveTensor, dtype: Dtype) -> Bytes | None:
        """The tensor's bytes in the mapping, if there is one and they are aligned to their elements."""
        offset, size = tensor.offset, tensor.entry.size
        if self._mapping is None or size == 0 or offset % dtype.itemsize:
            return None
        self.spans.append((offset, size))
        return self._mapping.memory[offset : offset + size]


def _is_plain(live: Any) -> bool:
    """Whether its bytes stand one after the other in host memory."""
    if isinstance(live, np.ndarray):
        return live.flags.c_contiguous
    return bool(live.device.type == "cpu" and live.is_contiguous())


def _spare(live: Any) -> Any:
    import torch

    return torch.empty(live.shape, dtype=live.dtype)


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray | Pieces) or (torch is not None and isinstance(value, torch.Tensor))


def fits(live: Any, dtype: Dtype, shape: tuple[int, ...]) -> bool:
    """Whether bytes of that type and shape can be put straight into ``live``."""
    if isinstance(live, np.ndarray):
        sound = live.flags.writeable and live.dtype.isnative
        return sound and live.shape == shape and BY_NUMPY_NAME.get(live.dtype.name) is dtype
    return (
        is_tensor(live)
        and (isinstance(live, Pieces) or live.device.type != "meta")
        and live.shape == shape
        and BY_TORCH_NAME.get(str(live.dtype)[6:]) is dtype
    )


def show(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}".removeprefix("torch.") if is_tensor(value) else type(value).__name__


def _target(offset: int, value: Any) -> ReadTarget:
    """All bytes of a contiguous tensor or array, as the target of those from ``offset`` on."""
    if isinstance(value, np.ndarray):
        return ReadTarget(offset, value.nbytes, value.ctypes.data, value)
    return ReadTarget(offset, value.nbytes, value.data_ptr(), value)


def _plain_tensors() -> tuple[frozenset[type], dict[Any, str]]:
    """The types of torch's own tensors, and how safetensors names their dtypes; both empty without torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return frozenset(), {}
    names = {getattr(torch, name): dtype.name for name, dtype in BY_TORCH_NAME.items() if hasattr(torch, name)}
    return frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}), names
