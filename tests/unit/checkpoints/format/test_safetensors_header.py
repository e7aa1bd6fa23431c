from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive
from chockstone.checkpoints.format import safetensors_header as tensorfile
from chockstone.checkpoints.format.dtypes import STORED_ITEMSIZE
from chockstone.checkpoints.format.safetensors_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    header_bytes,
    order_tensors,
    parse_header,
    render_header,
)
from chockstone.checkpoints.format.tar import PAGE

Triple = tuple[str, str, tuple[int, ...]]

TRIPLES = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), max_size=30).filter(lambda key: key != "__metadata__"),
        st.sampled_from(sorted(STORED_ITEMSIZE)),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
    ),
    max_size=10,
    unique_by=lambda triple: triple[0],
)


def render(tensors: list[Triple]) -> tuple[list[Triple], bytes, list[int], int]:
    """In file order: the tensors, their header, their offsets and the length of the data."""
    ordered = [tensors[index] for index in order_tensors([(STORED_ITEMSIZE[dtype], key) for key, dtype, _ in tensors])]
    header, offsets = render_header(ordered, metadata={"format": "pt"})
    return ordered, header, offsets, sum(STORED_ITEMSIZE[dtype] * math.prod(shape) for _, dtype, shape in ordered)


@settings(derandomize=True, deadline=None)
@given(TRIPLES)
def test_a_header_comes_back_as_it_was(tensors: list[Triple]) -> None:
    ordered, header, offsets, size = render(tensors)

    entries = parse_header(header, member="m", member_bytes=len(header) + size)

    assert [(entry.key, entry.dtype, entry.shape) for entry in entries.values()] == ordered
    assert [entry.start - len(header) for entry in entries.values()] == offsets
    assert header_bytes(header[:LENGTH_BYTES], member="m", member_bytes=len(header) + size) == len(header)


@settings(derandomize=True, deadline=None)
@given(TRIPLES)
def test_data_starts_on_a_page_and_every_tensor_on_its_element(tensors: list[Triple]) -> None:
    ordered, header, offsets, _ = render(tensors)

    assert len(header) % PAGE == 0
    assert all(offset % STORED_ITEMSIZE[dtype] == 0 for offset, (_, dtype, _) in zip(offsets, ordered, strict=True))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(TRIPLES)
def test_the_safetensors_package_reads_the_same_tensors(tensors: list[Triple]) -> None:
    ordered, header, _, size = render(tensors)

    found = dict(pytest.importorskip("safetensors").deserialize(header + bytes(size)))

    assert {key: (facts["dtype"], tuple(facts["shape"])) for key, facts in found.items()} == {
        key: (dtype, shape) for key, dtype, shape in ordered
    }


def test_the_order_of_tensors_does_not_depend_on_the_order_they_came_in() -> None:
    tensors: list[Triple] = [("b", "F32", (1,)), ("a", "F32", (1,)), ("c", "F64", (1,)), ("d", "U8", (1,))]

    orders = []
    for chosen in (tensors, tensors[::-1]):
        order = order_tensors([(STORED_ITEMSIZE[dtype], key) for key, dtype, _ in chosen])
        orders.append([chosen[i][0] for i in order])

    assert orders == [["c", "a", "b", "d"]] * 2


@pytest.mark.parametrize("length", [9, 2**63, 2**64 - 1, MAX_HEADER_BYTES + 1])
def test_a_header_longer_than_its_member_is_refused_before_it_is_read(length: int) -> None:
    with pytest.raises(DamagedArchive, match=f"member 'm' claims a header of {length} bytes in 16"):
        header_bytes(struct.pack("<Q", length), member="m", member_bytes=16)


def test_a_header_over_the_limit_is_refused_in_however_large_a_member() -> None:
    with pytest.raises(DamagedArchive, match="claims a header of 100000001 bytes"):
        header_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1), member="m", member_bytes=2**50)


def test_names_too_long_for_any_reader_are_refused_when_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorfile, "MAX_HEADER_BYTES", 100_000)

    with pytest.raises(CheckpointError, match="100000"):
        render_header([("k" * 100_001, "U8", (1,))], metadata={})


def test_a_tensor_of_more_dimensions_than_any_library_has_is_refused() -> None:
    entry = {"dtype": "U8", "shape": [1] * 65, "data_offsets": [0, 1]}
    text = json.dumps({"t": entry}).encode()
    header = struct.pack("<Q", len(text)) + text

    with pytest.raises(DamagedArchive, match="tensor 't' in 'm' is described wrongly"):
        parse_header(header, member="m", member_bytes=len(header) + 1)


def test_a_tensor_of_64_dimensions_is_fine() -> None:
    header, _ = render_header([("t", "U8", (1,) * 64)], metadata={})

    entries = parse_header(header, member="m", member_bytes=len(header) + 1)

    assert entries["t"].shape == (1,) * 64


@pytest.mark.parametrize(
    "key", ["", "a.b", "$", "\u0000", "\u202e", "ключ", "🔑" * 50, "k" * 100_000, 'quote"back\\slash']
)
def test_any_key_can_name_a_tensor(key: str) -> None:
    header, _ = render_header([(key, "U8", (3,))], metadata={})

    assert list(parse_header(header, member="m", member_bytes=len(header) + 3)) == [key]
    assert [name for name, _ in pytest.importorskip("safetensors").deserialize(header + bytes(3))] == [key]


@pytest.mark.parametrize("extent", ["true", "1.0", '"1"', "null"])
def test_an_extent_that_is_no_whole_number_is_refused_also_beside_one_that_equals_it(extent: str) -> None:
    fields = (
        '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}',
        f'{{"dtype":"U8","shape":[{extent}],"data_offsets":[1,2]}}',
    )
    text = f'{{"a":{fields[0]},"b":{fields[1]}}}'.encode()
    header = len(text).to_bytes(LENGTH_BYTES, "little") + text

    with pytest.raises(DamagedArchive, match="'b' in 'm' is described wrongly"):
        parse_header(header, member="m", member_bytes=len(header) + 2)
