from __future__ import annotations

import io
import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.mapped_files import MappedFile
from chockstone.integrations.formats.reading.torch_file import is_torch_zip, read_torch_file
from support.integrations.foreign import (
    Executes,
    nested_pickle,
    rewrite_zip,
    same,
    saved_bytes,
    training_state,
    with_pickle,
)


def read(tmp_path: Path, content: bytes) -> Any:
    (tmp_path / "file.pt").write_bytes(content)
    return read_torch_file(MappedFile.open(tmp_path / "file.pt"))


def storable_state() -> dict[str, Any]:
    return {key: value for key, value in training_state().items() if key != "names"}


def test_a_file_is_read_as_it_was_saved_with_ties_and_module_versions(tmp_path: Path) -> None:
    state = storable_state()

    loaded = read(tmp_path, saved_bytes(state))

    assert same(loaded, state)
    assert loaded["model"]._metadata == state["model"]._metadata
    assert loaded["model"]["2.weight"].data_ptr() == loaded["model"]["3.weight"].data_ptr()


def test_a_legacy_file_is_read(tmp_path: Path) -> None:
    state = storable_state()

    assert same(read(tmp_path, saved_bytes(state, _use_new_zipfile_serialization=False)), state)


def test_tensors_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    (tmp_path / "file.pt").write_bytes(saved_bytes({"w": torch.arange(1000)}))
    file = MappedFile.open(tmp_path / "file.pt")

    loaded = read_torch_file(file)

    start = file.memory.__array_interface__["data"][0]
    assert start < loaded["w"].data_ptr() < start + file.size


def test_a_file_of_numpy_1_names_is_read(tmp_path: Path) -> None:
    content = saved_bytes({"a": np.arange(3, dtype=np.int16), "b": np.float64(2)})

    renamed = rewrite_zip(content, lambda _, record: record.replace(b"numpy._core.", b"numpy.core."))

    assert same(read(tmp_path, renamed), {"a": np.arange(3, dtype=np.int16), "b": np.float64(2)})


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_file_is_named_and_does_not_run(tmp_path: Path, *, legacy: bool) -> None:
    marker = tmp_path / "ran"
    content = saved_bytes({"w": torch.ones(2), "x": Executes(marker)}, _use_new_zipfile_serialization=not legacy)

    with pytest.raises(ImportRefused, match=r"posix.system|os.system") as refused:
        read(tmp_path, content)

    assert "weights_only=False" in str(refused.value)
    assert not marker.exists()


def compressed() -> bytes:
    return rewrite_zip(saved_bytes({"w": torch.zeros(1_000_000)}), compression=zipfile.ZIP_DEFLATED)


def wrong_size() -> bytes:
    return rewrite_zip(
        saved_bytes({"w": torch.ones(64)}), lambda name, record: record[:-4] if name.endswith("data/0") else record
    )


def strided(size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """A tensor that claims other sizes and strides than its storage has."""
    original = pickle.dumps(((4,), (1,)), 2)[2:-1]
    replaced = pickle.dumps((size, stride), 2)[2:-1]
    assert original and replaced
    content = saved_bytes({"w": torch.ones(4)})
    with zipfile.ZipFile(io.BytesIO(content)) as source:
        payload = next(source.read(name) for name in source.namelist() if name.endswith("data.pkl"))
    claims = payload.replace(b"K\x04\x85", _tuple_code(size), 1).replace(b"K\x01\x85", _tuple_code(stride), 1)
    assert claims != payload
    return rewrite_zip(content, lambda name, record: claims if name.endswith("data.pkl") else record)


def _tuple_code(values: tuple[int, ...]) -> bytes:
    (value,) = values
    return b"\x8a\x06" + value.to_bytes(6, "little") + b"\x85"


def missing_record() -> bytes:
    out = io.BytesIO()
    content = saved_bytes({"w": torch.ones(64)})
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(out, "w") as target:
        for info in source.infolist():
            if not info.filename.endswith("data/0"):
                target.writestr(info.filename, source.read(info))
    return out.getvalue()


HOSTILE = {
    "compressed": (compressed, "is compressed"),
    "a tensor's bytes are too few": (wrong_size, "bytes where"),
    "a tensor's bytes are missing": (missing_record, "is missing"),
    "larger than its storage": (lambda: strided((1 << 40,), (1,)), "is not a sound file"),
    "repeats one element": (lambda: strided((1 << 40,), (0,)), "repeat the same elements"),
    "truncated": (lambda: saved_bytes({"w": torch.ones(1000)})[:-900], "cannot be read"),
    "garbage in the pickle": (lambda: with_pickle(b"\x80\x02garbage."), "is not a sound file|something other"),
    "an empty pickle": (lambda: with_pickle(b""), "is not a sound file"),
    "a state that explodes": (lambda: with_pickle(nested_pickle(60)), "more than 2,000,000 values"),
    "a deep state": (lambda: with_pickle(b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."), "levels"),
    "an array of objects": (lambda: saved_bytes({"a": np.array([None, 1], dtype=object)}), "numpy object"),
    "a structured array": (
        lambda: saved_bytes({"a": np.zeros(2, dtype=[("x", "f4")])}),
        "numpy object|something other",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_or_damaged_file_is_refused(tmp_path: Path, case: str) -> None:
    make, complaint = HOSTILE[case]

    with pytest.raises(ImportRefused, match=complaint):
        read(tmp_path, make())


def test_every_truncation_and_many_flips_are_refused_or_read_without_a_crash(tmp_path: Path) -> None:
    content = saved_bytes({"w": torch.arange(50), "n": [1, 2, {"a": "b"}]})
    rng = np.random.default_rng(0)

    for length in range(0, len(content), 41):
        if length:
            with pytest.raises(ImportRefused):
                read(tmp_path, content[:length] if content[:length].startswith(b"PK") else b"PK\x03\x04")
    for _ in range(150):
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        with suppress(ImportRefused):
            read(tmp_path, bytes(flipped))


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    torch_zip = rewrite_zip(saved_bytes({}))
    with zipfile.ZipFile(tmp_path / "module.pt", "w") as target, zipfile.ZipFile(io.BytesIO(torch_zip)) as source:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        target.writestr(f"{source.namelist()[0].partition('/')[0]}/constants.pkl", b"")

    with pytest.raises(ImportRefused, match="TorchScript"):
        read_torch_file(MappedFile.open(tmp_path / "module.pt"))


def test_another_zip_is_not_a_torch_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))

    assert not is_torch_zip(MappedFile.open(tmp_path / "a.npz"))
    assert os.path.getsize(tmp_path / "a.npz")
