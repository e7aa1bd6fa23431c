from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chockstone.checkpoints import Archive, Checkpointer, verify_archive
from chockstone.checkpoints.errors import (
    CheckpointError,
    DamagedArchive,
    DigestMismatch,
    ForeignArchive,
    TruncatedArchive,
    UncommittedArchive,
)
from chockstone.checkpoints.format.layout import MANIFEST_OFFSET, MIN_BLOCK_BYTES, Layout
from chockstone.checkpoints.format.tar import BLOCK, PAGE
from chockstone.checkpoints.restoring.restore import load_state, restore_state
from support.archives import BytesSource, assert_same, load_bytes, open_file, small_state, write_archive
from support.tensors import arange, zeros


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small archive, which loads."""
    content = write_archive(tmp_path_factory.mktemp("sound"), files={"config.json": b'{"r": 8}'}).read_bytes()
    assert_same(load_bytes(content), small_state())
    return content


@pytest.fixture(scope="module")
def layout(sound: bytes) -> Layout:
    with Archive(BytesSource(sound)) as archive:
        return archive.layout


def find_damage(content: bytes | bytearray) -> CheckpointError | None:
    """What opening and verifying the archive says is wrong with it. Anything but our own errors comes through."""
    try:
        with Archive(BytesSource(content)) as archive:
            verify_archive(archive)
    except CheckpointError as error:
        return error
    return None


def flips(content: bytes, offsets: range) -> Iterator[tuple[int, bytearray]]:
    """The archive with one bit of each of these bytes turned over, one after the other."""
    work = bytearray(content)
    for offset in offsets:
        bit = 1 << offset % 8
        work[offset] ^= bit
        yield offset, work
        work[offset] ^= bit


def names_the_format(offset: int) -> bool:
    """Whether this byte is one of those by which an archive is known to be ours at all."""
    field = offset - (MANIFEST_OFFSET - BLOCK)
    return 0 <= field < 14 or 257 <= field < 262


def test_a_flipped_bit_in_any_byte_of_the_head_is_found(sound: bytes, layout: Layout) -> None:
    for offset, damaged in flips(sound, range(layout.body_offset)):
        error = find_damage(damaged)

        wanted = ForeignArchive if names_the_format(offset) else DamagedArchive
        assert isinstance(error, wanted), f"byte {offset}: {error!r}"
        assert str(error)


def test_a_flipped_bit_in_any_byte_of_the_tail_is_found(sound: bytes, layout: Layout) -> None:
    for offset, damaged in flips(sound, range(layout.body_end, layout.size)):
        error = find_damage(damaged)

        assert type(error) is UncommittedArchive, f"byte {offset}: {error!r}"


def test_a_flipped_bit_in_any_byte_of_a_member_header_is_found(sound: bytes, layout: Layout) -> None:
    member = layout.members[1]
    for offset, damaged in flips(sound, range(member.header_offset, member.offset)):
        error = find_damage(damaged)

        assert type(error) is DamagedArchive, f"byte {offset}: {error!r}"
        assert f"instead of the header of member {member.name!r}" in str(error)


def test_a_flipped_bit_in_the_body_is_found_by_its_digest(sound: bytes, layout: Layout) -> None:
    headers = [range(member.header_offset, member.offset) for member in layout.members]
    for offset, damaged in flips(sound, range(layout.body_offset, layout.body_end, 61)):
        error = find_damage(damaged)

        wanted = DamagedArchive if any(offset in header for header in headers) else DigestMismatch
        assert type(error) is wanted, f"byte {offset}: {error!r}"


def test_loading_finds_a_flipped_bit_in_every_page(sound: bytes, layout: Layout) -> None:
    for offset, damaged in flips(sound, range(17, layout.size, PAGE)):
        with pytest.raises(CheckpointError):
            load_bytes(damaged)

        assert offset < layout.size


def test_all_eight_bits_count(sound: bytes, layout: Layout) -> None:
    work = bytearray(sound)
    for offset, bit in itertools.product((0, PAGE, layout.members[0].offset, layout.commit.offset), range(8)):
        work[offset] ^= 1 << bit
        assert find_damage(work) is not None, f"bit {bit} of byte {offset}"
        work[offset] ^= 1 << bit
    assert find_damage(work) is None


def test_an_archive_cut_short_anywhere_is_found(sound: bytes, layout: Layout) -> None:
    lengths = {cut + near for cut in range(0, layout.size, BLOCK) for near in (-1, 0, 1)} | {layout.size - 1}
    for length in sorted(lengths & set(range(layout.size))):
        error = find_damage(sound[:length])

        assert type(error) is TruncatedArchive, f"{length} bytes: {error!r}"


@pytest.mark.parametrize(
    "more", [b"\0", b"x", bytes(BLOCK), bytes(PAGE), b"\xff" * PAGE, bytes(MIN_BLOCK_BYTES)], ids=len
)
def test_bytes_after_the_end_are_found(sound: bytes, layout: Layout, more: bytes) -> None:
    with pytest.raises(TruncatedArchive, match=f"has {layout.size + len(more)} bytes and not {layout.size}"):
        load_bytes(sound + more)


def test_two_archives_in_one_file_are_not_one(sound: bytes) -> None:
    with pytest.raises(TruncatedArchive):
        load_bytes(sound + sound)


def test_a_missing_commit_is_named(sound: bytes, layout: Layout) -> None:
    unfinished = sound[: layout.body_end] + bytes(layout.size - layout.body_end)

    with pytest.raises(UncommittedArchive, match="has no COMMIT member: its write was never finished"):
        load_bytes(unfinished)


def test_a_head_that_was_never_written_is_not_taken_for_an_archive(sound: bytes, layout: Layout) -> None:
    with pytest.raises(ForeignArchive, match="its first member is zeros"):
        load_bytes(bytes(layout.body_offset) + sound[layout.body_offset :])


@pytest.mark.parametrize("unit", [BLOCK, PAGE])
def test_any_part_that_was_never_written_is_found(sound: bytes, layout: Layout, unit: int) -> None:
    for start in range(0, layout.size, unit):
        hole = sound[:start] + bytes(unit) + sound[start + unit :]
        if hole == sound:
            continue  # zeros to begin with

        assert isinstance(find_damage(hole), DamagedArchive | ForeignArchive), f"zeros at {start}"


def test_any_two_pages_that_changed_places_are_found(sound: bytes, layout: Layout) -> None:
    pages = [sound[start : start + PAGE] for start in range(0, layout.size, PAGE)]
    for one, other in itertools.combinations(range(len(pages)), 2):
        if pages[one] == pages[other]:
            continue
        swapped = [*pages]
        swapped[one], swapped[other] = pages[other], pages[one]

        assert find_damage(b"".join(swapped)) is not None, f"pages {one} and {other}"


def test_two_blocks_that_changed_places_are_found(tmp_path: Path) -> None:
    numbers = arange(MIN_BLOCK_BYTES, "int32")  # four blocks
    content = write_archive(tmp_path, {"model": numbers}).read_bytes()
    with Archive(BytesSource(content)) as archive:
        (a, b), (c, d) = archive.layout.block_range(1), archive.layout.block_range(3)

    swapped = content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]

    with pytest.raises(DigestMismatch, match=r"block [13] of 5"):
        load_bytes(swapped)


def test_a_file_half_old_and_half_new_is_found_wherever_it_is_torn(tmp_path: Path, sound: bytes) -> None:
    """What a writer that overwrites in place would leave; also a lost or stale page of a network file system."""
    state = small_state()
    state["model"]["weight"] += 1
    new = write_archive(tmp_path, state, files={"config.json": b'{"r": 8}'}).read_bytes()
    assert len(new) == len(sound)

    for cut in range(PAGE, len(sound), PAGE):
        for mixed in (sound[:cut] + new[cut:], new[:cut] + sound[cut:]):
            if mixed not in (sound, new):
                assert find_damage(mixed) is not None, f"torn at {cut}"


def test_a_file_that_shrinks_while_it_is_restored_is_truncated(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    with open_file(path) as archive:
        os.truncate(path, PAGE)

        with pytest.raises(TruncatedArchive, match="ends while it is being read"):
            restore_state(archive, small_state())


def test_a_file_that_shrinks_before_it_is_mapped_is_truncated(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    with open_file(path) as archive:
        os.truncate(path, PAGE)

        with pytest.raises(TruncatedArchive):
            load_state(archive)


def test_a_damaged_archive_asked_for_by_name_is_refused_and_nothing_is_touched(tmp_path: Path, sound: bytes) -> None:
    (tmp_path / "step-00000001.tar").write_bytes(sound[:-PAGE])
    into = {"model": {"weight": zeros(13, 7)}}

    with Checkpointer(tmp_path) as checkpointer, pytest.raises(TruncatedArchive, match=f"and not {len(sound)}"):
        checkpointer.restore(into, name="step-00000001")

    assert not into["model"]["weight"].any()


def test_a_damaged_archive_is_walked_past_and_named(tmp_path: Path) -> None:
    write_archive(tmp_path, {"epoch": 1}, step=1)
    newer = write_archive(tmp_path, {"epoch": 2}, step=2)
    newer.write_bytes(newer.read_bytes()[:-1])
    into = {"epoch": 0}

    with Checkpointer(tmp_path) as checkpointer:
        receipt = checkpointer.restore(into)

    assert into == {"epoch": 1}
    assert [skipped.name for skipped in receipt.skipped] == ["step-00000002"]
    assert "bytes and not" in receipt.skipped[0].reason
