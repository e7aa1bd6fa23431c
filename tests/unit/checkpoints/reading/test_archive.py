from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, verify_archive
from chockstone.checkpoints.errors import CheckpointError, DigestMismatch, ForeignArchive
from chockstone.checkpoints.format import layout
from chockstone.checkpoints.format.layout import MIN_BLOCK_BYTES
from chockstone.checkpoints.reading.archive import SAMPLE_EVERY, Verify
from chockstone.checkpoints.restoring.restore import load_state
from support.archives import BytesSource, assert_same, load_bytes, open_file, small_state, write_archive
from support.tensors import arange
from unit.checkpoints.reading.conftest import BLOCKS


def test_archives_with_the_larger_blocks_of_the_first_writers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"model": {"weight": arange(3 << 20, "uint8")}}
    monkeypatch.setattr(layout, "MIN_BLOCK_BYTES", 1024**2)
    path = write_archive(tmp_path, state)
    monkeypatch.undo()

    with open_file(path) as archive:
        assert archive.layout.block_bytes == 1024**2 > MIN_BLOCK_BYTES
        assert verify_archive(archive) == archive.layout.block_count
        assert_same(load_state(archive), state)


def block_of(archive: Archive, offset: int) -> int:
    return (offset - archive.layout.body_offset) // archive.layout.block_bytes


def flipped(content: bytes, offset: int) -> bytes:
    damaged = bytearray(content)
    damaged[offset] ^= 1
    return bytes(damaged)


def touched(source: BytesSource, archive: Archive) -> set[int]:
    """Blocks of the body that reads since the last ``reads.clear()`` went to."""
    return {
        index
        for offset, size in source.reads
        for index in range(block_of(archive, offset), block_of(archive, offset + size - 1) + 1)
    }


@pytest.mark.parametrize("size", range(0, 4609, 256))
def test_an_archive_loads_wherever_its_last_member_ends(tmp_path: Path, size: int) -> None:
    state = {"model": arange(size, "uint8")}

    path = write_archive(tmp_path, state)

    assert_same(load_bytes(path.read_bytes()), state)


def test_opening_reads_head_tail_and_headers_only(large: bytes) -> None:
    source = BytesSource(large)

    with Archive(source) as archive:
        members = list(archive.members)

    assert members == ["state.json", "model.safetensors"]
    assert sum(size for _, size in source.reads) < 128 * 1024


def test_a_closed_archive_has_closed_its_source(large: bytes) -> None:
    source = BytesSource(large)

    with Archive(source):
        assert not source.closed

    assert source.closed


def test_an_archive_that_cannot_be_opened_has_closed_its_source() -> None:
    source = BytesSource(bytes(65536))

    with pytest.raises(ForeignArchive):
        Archive(source)

    assert source.closed


def test_an_unknown_policy_is_refused_and_the_source_closed(large: bytes) -> None:
    source = BytesSource(large)

    with pytest.raises(ValueError, match="verify='most': choose 'full', 'sampled' or 'off'"):
        Archive(source, verify="most")  # type: ignore[arg-type]  # on purpose

    assert source.closed


def test_no_descriptor_is_left_open_whatever_happens(tmp_path: Path) -> None:
    good = write_archive(tmp_path)
    bad = tmp_path / "bad.tar"
    with open_file(good) as archive:
        bad.write_bytes(flipped(good.read_bytes(), archive.tensors("model.safetensors")["bias"].offset))
    gc.collect()  # what earlier tests left is not ours
    open_before = len(os.listdir("/proc/self/fd"))

    for path in (good, bad):
        try:
            with open_file(path) as archive:
                load_state(archive)
        except DigestMismatch:
            pass
    gc.collect()

    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_one_tensor_is_read_without_touching_the_rest(large: bytes) -> None:
    source = BytesSource(large)
    with Archive(source) as archive:
        tensor = archive.tensors("model.safetensors")["t11"]
        source.reads.clear()

        content = archive.read_range(tensor.offset, tensor.entry.size)

        first, last = block_of(archive, tensor.offset), block_of(archive, tensor.offset + tensor.entry.size - 1)
        assert touched(source, archive) <= {first, last}
    assert content == large[tensor.offset : tensor.offset + tensor.entry.size]


def test_a_byte_range_of_a_member_is_read_without_touching_the_rest(large: bytes) -> None:
    source = BytesSource(large)
    with Archive(source) as archive:
        member = archive.members["model.safetensors"]
        source.reads.clear()

        content = archive.read("model.safetensors", 5 * MIN_BLOCK_BYTES + 17, 1000)

        assert content == large[member.offset + 5 * MIN_BLOCK_BYTES + 17 :][:1000]
        assert len(touched(source, archive)) == 1


@pytest.mark.parametrize(("start", "size"), [(0, None), (0, 0), (1, None), (7, 1), (0, 10), (3, 7)])
def test_a_member_is_read_whole_or_in_part(tmp_path: Path, start: int, size: int | None) -> None:
    content = b"0123456789"
    path = write_archive(tmp_path, files={"notes.txt": content})

    with open_file(path) as archive:
        found = archive.read("notes.txt", start, size)

    assert found == content[start:][:size]


@pytest.mark.parametrize(("start", "size"), [(-1, 1), (0, 11), (11, None), (5, 6), (0, -1), (2**70, 1)])
def test_a_range_outside_its_member_is_refused(tmp_path: Path, start: int, size: int | None) -> None:
    path = write_archive(tmp_path, files={"notes.txt": b"0123456789"})

    with open_file(path) as archive, pytest.raises(ValueError, match=r"are not inside 'notes\.txt' of 10 bytes"):
        archive.read("notes.txt", start, size)


def test_a_range_outside_the_body_is_refused(tmp_path: Path) -> None:
    with open_file(write_archive(tmp_path)) as archive:
        for offset in (0, archive.layout.body_offset - 1, archive.layout.body_end, archive.size):
            with pytest.raises(ValueError, match="not inside the body"):
                archive.read_range(offset, 1)


def test_a_member_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with (
        open_file(write_archive(tmp_path)) as archive,
        pytest.raises(KeyError, match="no member 'x'"),
    ):
        archive.read("x")


def test_all_tensors_are_listed_with_their_paths(tmp_path: Path) -> None:
    with open_file(write_archive(tmp_path)) as archive:
        paths = {tensor.path for tensor in archive.all_tensors()}

    assert paths == {"model.weight", "model.bias", "optimizer.state.0.step", "optimizer.state.0.exp_avg"}


def test_a_mapped_archive_shows_its_tensors_in_place_on_aligned_memory(tmp_path: Path) -> None:
    state = small_state()
    path = write_archive(tmp_path, state)

    with open_file(path) as archive:
        mapped = archive.map()
        tensor = archive.tensors("model.safetensors")["weight"]
    assert mapped is not None
    found = np.frombuffer(mapped, dtype=np.float32, count=13 * 7, offset=tensor.offset).reshape(13, 7)

    assert found.flags.aligned
    assert np.array_equal(found, np.asarray(state["model"]["weight"]))


@pytest.mark.parametrize("verify", ["full", "sampled", "off"])
def test_every_policy_loads_a_sound_archive(large: bytes, verify: Verify) -> None:
    with Archive(BytesSource(large), verify=verify) as archive:
        state = load_state(archive)
        count = archive.blocks_verified

    assert len(state["model"]) == BLOCKS
    blocks = archive.layout.block_count
    assert count == {"full": blocks, "sampled": len({*range(0, blocks, SAMPLE_EVERY), blocks - 1}), "off": 0}[verify]


def test_a_damaged_block_is_named_with_its_members_and_place(large: bytes) -> None:
    with Archive(BytesSource(large)) as archive:
        start = archive.layout.block_range(7)[0]
    damaged = Archive(BytesSource(flipped(large, start + 5)))

    with damaged, pytest.raises(DigestMismatch) as caught:
        load_state(damaged)

    assert str(caught.value) == (
        f"block 7 of {damaged.layout.block_count}, {MIN_BLOCK_BYTES} bytes in model.safetensors, "
        f"is not what was written (at byte {start})"
    )
    assert caught.value.where == start


def test_damage_in_a_block_that_is_not_read_does_not_matter(large: bytes) -> None:
    with Archive(BytesSource(large)) as archive:
        spot = archive.tensors("model.safetensors")["t03"].offset
    damaged = Archive(BytesSource(flipped(large, spot + MIN_BLOCK_BYTES // 2)))

    with damaged:
        tensors = damaged.tensors("model.safetensors")

        damaged.read_range(tensors["t11"].offset, tensors["t11"].entry.size)
        with pytest.raises(DigestMismatch):
            damaged.read_range(tensors["t03"].offset, tensors["t03"].entry.size)


@pytest.mark.parametrize("block", [0, SAMPLE_EVERY, "last"])
def test_the_sampled_policy_finds_damage_in_the_blocks_it_checks(large: bytes, block: int | str) -> None:
    with Archive(BytesSource(large)) as archive:
        index = archive.layout.block_count - 1 if block == "last" else int(block)
        end = archive.layout.block_range(index)[1]
    damaged = Archive(BytesSource(flipped(large, end - 1)), verify="sampled")

    with damaged, pytest.raises(DigestMismatch, match=f"block {index} of"):
        verify_archive(damaged)


def test_the_sampled_policy_does_not_read_the_others(large: bytes) -> None:
    source = BytesSource(large)
    with Archive(source, verify="sampled") as archive:
        source.reads.clear()

        verify_archive(archive)

        assert touched(source, archive) == {0, SAMPLE_EVERY, archive.layout.block_count - 1}


def test_the_off_policy_hands_out_what_is_there(large: bytes) -> None:
    with Archive(BytesSource(large)) as archive:
        spot = archive.tensors("model.safetensors")["t05"].offset

    with Archive(BytesSource(flipped(large, spot)), verify="off") as archive:
        state = load_state(archive)

    assert int(state["model"]["t05"][0]) == large[spot] ^ 1


def test_a_file_of_the_callers_cannot_replace_the_state(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(CheckpointError, match=r"state\.json"):
        checkpointer.save({"a": 1}, step=1, files={"state.json": b'{"a": 2}'}).result()


def test_a_size_is_loaded_as_a_size(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = write_archive(tmp_path, {"a": torch.Size([2, 3])})

    with open_file(path) as archive:
        assert_same(load_state(archive), {"a": torch.Size([2, 3])})


def test_none_is_loaded_as_none(tmp_path: Path) -> None:
    path = write_archive(tmp_path, {"a": None, "b": [None]})

    with open_file(path) as archive:
        assert load_state(archive) == {"a": None, "b": [None]}


def test_a_loaded_tensor_outlives_its_archive_and_is_private(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    before = path.read_bytes()

    with open_file(path) as archive:
        state = load_state(archive)
    state["model"]["weight"][:] = 0
    path.unlink()

    assert_same(state["model"]["bias"], small_state()["model"]["bias"])
    assert before == write_archive(tmp_path).read_bytes(), "and what it was loaded from has not changed"
