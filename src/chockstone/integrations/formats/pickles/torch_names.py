"""The names that pickles of ``torch.save`` consist of, and the tensors that are made for them."""

from __future__ import annotations

import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.integrations.formats.pickles.pickled_arrays import STAND_INS
from chockstone.integrations.formats.pickles.unpickler import Builder, check_keys

MAX_ELEMENTS: Final = 2**48  # of one tensor
_STORAGES: Final = {
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
}
_MAX_DIMENSIONS: Final = 64


class StorageKind(NamedTuple):
    """A class of storages, such as ``torch.FloatStorage``."""

    dtype: Any  # Any: torch.dtype; torch is imported on use


class StoredBytes(NamedTuple):
    """The storage of one or several tensors."""

    dtype: Any  # of the class of the storage
    key: str
    size: int  # in bytes


class StoredTensors:
    """Makes the tensors of one file. Those that share a storage share memory."""

    def __init__(self, find_bytes: Callable[[str, int], Bytes] | None) -> None:
        """``find_bytes``: the bytes of a storage, by its key and its size, which must be right.

        None: tensors are empty, and ``sizes`` tells afterwards which storages they need.
        """
        self._find_bytes = find_bytes
        self.sizes: dict[str, int] = {}  # of the storages, by key
        self._contents: dict[str, Any] = {}  # tensors of bytes, by the key of their storage

    def storage(self, wanted: Any) -> StoredBytes:
        """The storage that a persistent id of torch means."""
        import torch

        match wanted:
            case ("storage", StorageKind(dtype=dtype), str(key), _, int(count), *more) if more in ([], [None]):
                size = count * dtype.itemsize
            case _:
                raise pickle.UnpicklingError("a tensor refers to no storage of a known type")
        if self.sizes.setdefault(key, size) != size or size < 0:
            raise pickle.UnpicklingError("two tensors give one storage different sizes")
        if key not in self._contents and self._find_bytes is not None:
            self._contents[key] = torch.from_numpy(self._find_bytes(key, size))
        return StoredBytes(dtype, key, size)

    def tensor(
        self, storage: Any, first: Any, shape: Any, strides: Any, _grad: object, _hooks: object, bits: Any = None
    ) -> Any:
        """``torch._utils._rebuild_tensor_v2``."""
        return self._make(storage, storage.dtype, first, shape, strides, bits)

    def typed_tensor(
        self,
        storage: Any,
        first: Any,
        shape: Any,
        strides: Any,
        _grad: object,
        _hooks: object,
        dtype: Any,
        bits: Any = None,
    ) -> Any:
        """``torch._utils._rebuild_tensor_v3``: of dtypes that have no class of storages."""
        return self._make(storage, dtype, first, shape, strides, bits)

    def _make(self, storage: Any, dtype: Any, first: Any, shape: Any, strides: Any, bits: Any) -> Any:
        import torch

        numbers = (first, *_numbers(shape), *_numbers(strides))
        if not isinstance(storage, StoredBytes) or not isinstance(dtype, torch.dtype) or not _are_counts(numbers):
            raise pickle.UnpicklingError("a tensor is made of something else than a storage and numbers")
        if self._find_bytes is None:
            return torch.empty(0, dtype=dtype)
        if not math.prod(shape):
            return torch.empty(tuple(shape), dtype=dtype)
        reach = first + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
        if storage.size % dtype.itemsize or reach >= storage.size // dtype.itemsize:
            raise pickle.UnpicklingError(f"a tensor of shape {list(shape)} is not inside its storage")
        if math.prod(shape) > MAX_ELEMENTS:
            raise pickle.UnpicklingError(f"a tensor has the shape {list(shape)}")
        content = self._contents[storage.key]
        if content.data_ptr() % dtype.itemsize:
            content = self._contents[storage.key] = content.clone()
        made = content.view(dtype).as_strided(tuple(shape), tuple(strides), first)
        if isinstance(bits, dict) and bits.get("conj"):
            made = made.conj()
        return torch._neg_view(made) if isinstance(bits, dict) and bits.get("neg") else made


def torch_names(tensors: StoredTensors) -> dict[str, Any]:
    """What the names in a pickle of ``torch.save`` stand for; ``tensors`` makes its tensors."""
    import torch

    dtypes = {f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    storages = {f"torch.{name}Storage": StorageKind(getattr(torch, dtype)) for name, dtype in _STORAGES.items()}
    return {
        **dtypes,
        **storages,
        "torch.storage.UntypedStorage": StorageKind(torch.uint8),
        "torch._utils._rebuild_tensor_v2": Builder(tensors.tensor),
        "torch._utils._rebuild_tensor_v3": Builder(tensors.typed_tensor),
        "torch._utils._rebuild_parameter": Builder(_parameter),
        "torch._utils._rebuild_parameter_with_state": Builder(_parameter),
        "torch._tensor._rebuild_from_type_v2": Builder(_from_type),
        "torch.Tensor": torch.Tensor,
        "torch.nn.parameter.Parameter": torch.nn.Parameter,
        "torch.Size": Builder(size_of),
        "torch.device": Builder(_device),
        "collections.OrderedDict": Builder(_ordered),
        "collections.Counter": Builder(_counter),
        "builtins.set": Builder(set_of),
        "builtins.frozenset": Builder(lambda items=(): frozenset(set_of(items))),
        "builtins.complex": Builder(_complex),
        "builtins.bytes": Builder(lambda: b""),
        "_codecs.encode": Builder(_bytes),
        **{name: Builder(stand_in) for name, stand_in in STAND_INS.items()},
    }


def size_of(items: Any = ()) -> Any:
    import torch

    if not _are_counts(_numbers(items)):
        raise pickle.UnpicklingError("a size holds something else than numbers")
    return torch.Size(tuple(items))


def set_of(items: Any = ()) -> set[Any]:
    if type(items) is not list:
        raise pickle.UnpicklingError("a set is made of something else than a list")
    check_keys(items)
    return set(items)


def _are_counts(numbers: tuple[Any, ...]) -> bool:
    return all(type(number) is int and 0 <= number < 2**63 for number in numbers)


def _numbers(items: Any) -> tuple[Any, ...]:
    if not isinstance(items, list | tuple) or len(items) > _MAX_DIMENSIONS:
        raise pickle.UnpicklingError("a shape is no short list of numbers")
    return tuple(items)


def _parameter(data: Any, needs_grad: Any, *_: object) -> Any:
    import torch

    if not isinstance(data, torch.Tensor):
        raise pickle.UnpicklingError("a parameter is made of something else than a tensor")
    can_have_grad = data.is_floating_point() or data.is_complex()
    return torch.nn.Parameter(data, requires_grad=needs_grad is True and can_have_grad)


def _from_type(make: Any, kind: Any, arguments: Any, _state: object) -> Any:
    """A tensor with attributes of its own, which are not read."""
    import torch

    if not isinstance(make, Builder) or kind not in (torch.Tensor, torch.nn.Parameter) or type(arguments) is not tuple:
        raise pickle.UnpicklingError("a tensor is of a class that is not read")
    return make.make(*arguments)


def _device(kind: Any, index: Any = None) -> Any:
    import torch

    if type(kind) is not str or not (index is None or type(index) is int):
        raise pickle.UnpicklingError("a device is made of something else than its name")
    return torch.device(kind, index) if index is not None else torch.device(kind)


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    made: OrderedDict[Any, Any] = OrderedDict()
    for key, value in pairs if type(pairs) is list else ():
        check_keys([key])
        made[key] = value
    return made


def _counter(counts: Any = None) -> Counter[Any]:
    if counts is not None and type(counts) is not dict:
        raise pickle.UnpicklingError("a counter is made of something else than a dict")
    made: Counter[Any] = Counter()
    dict.update(made, counts or {})
    return made


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise pickle.UnpicklingError("a complex number is made of something else than two numbers")
    return complex(real, imaginary)


def _bytes(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("bytes are made of something else than text in latin1")
    return text.encode("latin-1")
