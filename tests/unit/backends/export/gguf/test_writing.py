from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from chockstone.backends.export.gguf.tensors import GgufTensor
from chockstone.backends.export.gguf.writing import check_file, encode, write_file
from chockstone.checkpoints.errors import ExportRefused

F32, F16, BF16, Q8 = (GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0"))
ROWS = torch.randn(7, 64, generator=torch.Generator().manual_seed(5))


def tensor(values: torch.Tensor, kind: GGMLQuantizationType, name: str = "t", *, pieces: int = 3) -> GgufTensor:
    def divide() -> Iterator[torch.Tensor]:
        return iter(values.chunk(pieces)) if values.dim() > 1 else iter([values])

    return GgufTensor(name, tuple(values.shape), kind, divide)


def make_writer() -> GGUFWriter:
    writer = GGUFWriter(None, "llama")
    writer.add_name("x")
    writer.add_token_list(["a", "b"])
    writer.add_token_scores([0.1, -3.0])
    writer.add_layer_norm_rms_eps(1e-6)
    return writer


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    tensors = [tensor(ROWS, kind, kind.name) for kind in (F32, F16, BF16, Q8)]
    tensors += [tensor(ROWS[0, :5], F32, "odd"), tensor(ROWS.reshape(7, 2, 32), F32, "deep")]
    writer, seen = make_writer(), []

    digests = write_file(writer, tensors, tmp_path / "f", on_bytes=seen.append)
    check_file(tmp_path / "f", writer, tensors, digests, on_bytes=seen.append)

    found = {each.name: each for each in GGUFReader(tmp_path / "f").tensors}
    assert sum(seen) == 2 * sum(each.size_bytes for each in tensors)
    assert torch.equal(torch.from_numpy(found["F32"].data.copy()), ROWS)
    assert torch.equal(torch.from_numpy(found["F16"].data.copy()), ROWS.half())
    assert found["BF16"].data.tobytes() == ROWS.bfloat16().view(torch.uint8).numpy().tobytes()
    assert torch.equal(torch.from_numpy(found["deep"].data.copy()), ROWS.reshape(7, 2, 32))
    assert np.array_equal(found["odd"].data, ROWS[0, :5].numpy())


@pytest.mark.parametrize(
    ("kind", "value", "is_held"),
    [
        (F16, 60_000.0, True),
        (F16, 70_000.0, False),
        (Q8, 8e6, True),
        (Q8, 9e6, False),
        (BF16, 3.4e38, False),
        (BF16, 3e38, True),
        (F16, float("inf"), True),
        (F32, float("nan"), True),
        (Q8, float("nan"), False),
    ],
)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_numbers_that_a_type_cannot_hold_are_refused(kind: GGMLQuantizationType, value: float, is_held: bool) -> None:
    rows = ROWS.clone()
    rows[3, 3] = value

    if is_held:
        assert sum(len(content) for content in encode(tensor(rows, kind))) == tensor(rows, kind).size_bytes
        return
    with pytest.raises(
        ExportRefused, match=f"numbers that type '{kind.name.lower()}' cannot hold; export as 'bf16' or"
    ):
        list(encode(tensor(rows, kind)))


@pytest.mark.parametrize(
    ("where", "what"),
    [("the last number", "tensor 't'"), ("a token", "its metadata"), ("the start", "magic"), ("the end", "")],
)
def test_damage_is_found(tmp_path: Path, where: str, what: str) -> None:
    tensors, writer, path = [tensor(ROWS, F32)], make_writer(), tmp_path / "f"
    digests = write_file(writer, tensors, path, on_bytes=lambda _: None)
    content = bytearray(path.read_bytes())
    position = {
        "the last number": len(content) - 1,
        "a token": content.index(b"tokenizer.ggml.tokens") + 21 + 4 + 4 + 8 + 8,
        "the start": 0,
        "the end": 0,
    }[where]
    content[position] ^= 1
    path.write_bytes(content if where != "the end" else path.read_bytes()[:-100])

    with pytest.raises(ExportRefused, match=f"was not read back as it was written: .*{what}"):
        check_file(path, writer, tensors, digests, on_bytes=lambda _: None)


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    (tmp_path / "f").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        write_file(make_writer(), [tensor(ROWS, F32)], tmp_path / "f", on_bytes=lambda _: None)
