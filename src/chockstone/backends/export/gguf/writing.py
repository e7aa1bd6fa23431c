"""Writes GGUF files, one piece of a tensor in memory at a time, and reads them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quantize

from chockstone.backends.export.gguf.tensors import GgufTensor
from chockstone.checkpoints.errors import ExportRefused

_PIECE_NUMBERS: Final = 4 * 1024**2
_SCALE_BYTES: Final = 2  # a float16 before the 32 numbers of a block of Q8_0
_TORCH_TYPES: Final = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
OnBytes = Callable[[int], None]
Bytes = npt.NDArray[np.uint8]


def write_file(writer: GGUFWriter, tensors: Sequence[GgufTensor], path: Path, *, on_bytes: OnBytes) -> dict[str, str]:
    """Write the metadata of ``writer`` and the tensors to a new file; returns the digest of each tensor.

    The file is not synced. Raises ExportRefused if numbers do not fit into their type.
    """
    for tensor in tensors:
        writer.add_tensor_info(tensor.name, tensor.extents, np.dtype(np.float32), tensor.size_bytes, tensor.kind)
    digests: dict[str, str] = {}
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None  # it is open now
        file = writer.fout[0]
        writer.write_padding(file, file.tell())
        for tensor in tensors:
            digest = xxhash.xxh3_128()
            written = 0
            for content in encode(tensor):
                digest.update(content)
                file.write(content)
                written += len(content)
                on_bytes(len(content))
            assert written == tensor.size_bytes, tensor.name
            writer.write_padding(file, written)
            digests[tensor.name] = digest.hexdigest()
    finally:
        writer.close()
    return digests


def encode(tensor: GgufTensor) -> Iterator[memoryview]:
    """The numbers of a tensor as its bytes in the file, in pieces."""
    width = tensor.extents[-1]
    height = max(1, _PIECE_NUMBERS // max(1, width))
    for piece in tensor.pieces():
        rows = piece.reshape(-1, width)
        for start in range(0, len(rows), height):
            yield _encode(rows[start : start + height], tensor).data


def check_file(
    path: Path, writer: GGUFWriter, tensors: Sequence[GgufTensor], digests: Mapping[str, str], *, on_bytes: OnBytes
) -> None:
    """Read the file with the reader of ``gguf``, and hold that it finds what was written. Raises ExportRefused."""
    try:
        reader = GGUFReader(path)
    except (ValueError, KeyError, IndexError) as error:
        raise _unlike(str(error)) from error
    for key, value in writer.kv_data[0].items():
        field = reader.get_field(key)
        if field is None or not _is_same(field.contents(), value.value, value.type):
            raise _unlike(f"its metadata {key!r}")
    found = {each.name: each for each in reader.tensors}
    if list(found) != [tensor.name for tensor in tensors]:
        raise _unlike("its list of tensors")
    for tensor in tensors:
        read = found[tensor.name]
        if read.tensor_type != tensor.kind or tuple(reversed(read.shape.tolist())) != tensor.extents:
            raise _unlike(f"the type or shape of tensor {tensor.name!r}")
        if _digest(read.data.reshape(-1).view(np.uint8), on_bytes) != digests[tensor.name]:
            raise _unlike(f"tensor {tensor.name!r}")


def _encode(rows: torch.Tensor, tensor: GgufTensor) -> Bytes:
    if tensor.kind in _TORCH_TYPES:
        numbers = rows.to(_TORCH_TYPES[tensor.kind]).contiguous()
        are_held = bool(torch.isfinite(numbers).all()) or not bool(torch.isfinite(rows).all())
        content: Bytes = numbers.reshape(-1).view(torch.uint8).numpy()
    else:
        content = quantize(rows.float().contiguous().numpy(), tensor.kind).reshape(-1)
        blocks = content.reshape(-1, GGML_QUANT_SIZES[tensor.kind][1])
        are_held = bool(np.isfinite(blocks[:, :_SCALE_BYTES].copy().view(np.float16)).all())
    if not are_held:
        raise ExportRefused(
            f"tensor {tensor.name!r} has numbers that type {tensor.kind.name.lower()!r} cannot hold; export as 'bf16' "
            "or 'f32'"
        )
    return content


def _digest(content: Bytes, on_bytes: OnBytes) -> str:
    digest = xxhash.xxh3_128()
    for start in range(0, len(content), _PIECE_NUMBERS):
        piece = content[start : start + _PIECE_NUMBERS]
        digest.update(piece.data)
        on_bytes(piece.nbytes)
    return digest.hexdigest()


def _is_same(found: Any, written: Any, kind: GGUFValueType) -> bool:  # Any: values of metadata
    if kind == GGUFValueType.ARRAY:
        written = list(written)
        if written and isinstance(written[0], float):
            return bool(np.array_equal(np.float32(found), np.float32(written)))
        return bool(found == written)
    if kind == GGUFValueType.FLOAT32:
        return bool(np.float32(found) == np.float32(written))
    return bool(found == written)


def _unlike(what: str) -> ExportRefused:
    return ExportRefused(f"the file was not read back as it was written: {what}; check the disk, and export again")
