from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.checkpoints.format.layout import (
    MAX_BLOCKS,
    MAX_MEMBERS,
    MIN_BLOCK_BYTES,
    body_bytes,
    check_members,
    choose_block_bytes,
    plan_layout,
)
from chockstone.checkpoints.format.tar import BLOCK, PAGE, round_up

NAMES = st.lists(
    st.text("abcXYZ019._-", min_size=1, max_size=150).filter(lambda name: name not in {".", ".."}),
    max_size=12,
    unique_by=str.casefold,
)
SIZES = st.integers(0, 20_000) | st.integers(0, 2**50) | st.sampled_from([0, 1, 511, 512, 513, 4095, 4096, 8 * 1024**3])


@st.composite
def members(draw: st.DrawFn) -> list[tuple[str, int]]:
    return [(name, draw(SIZES)) for name in draw(NAMES)]


@settings(derandomize=True, deadline=None)
@given(members(), st.integers(1, 40))
def test_members_follow_each_other_without_overlap_and_start_on_pages(
    planned: list[tuple[str, int]], manifest_pages: int
) -> None:
    layout = plan_layout(planned, manifest_bytes=manifest_pages * PAGE, block_bytes=MIN_BLOCK_BYTES)

    position = 0
    for member in (layout.manifest, *layout.members, layout.commit):
        assert member.header_offset == position
        assert member.offset % PAGE == 0
        assert member.offset > member.header_offset
        position = round_up(member.end, BLOCK)
    assert layout.size % PAGE == 0
    assert layout.size - position >= 2 * BLOCK, "two blocks of zeros end a tar"
    assert layout.size - position < 2 * BLOCK + PAGE


@settings(derandomize=True, deadline=None)
@given(members(), st.integers(1, 40))
def test_the_body_does_not_depend_on_the_manifest(planned: list[tuple[str, int]], manifest_pages: int) -> None:
    layout = plan_layout(planned, manifest_bytes=manifest_pages * PAGE, block_bytes=MIN_BLOCK_BYTES)

    assert layout.body_end - layout.body_offset == body_bytes(planned)
    assert layout.body_offset % PAGE == 0


@settings(derandomize=True, deadline=None)
@given(members())
def test_blocks_cover_the_body_exactly_once(planned: list[tuple[str, int]]) -> None:
    block_bytes = choose_block_bytes(body_bytes(planned))
    layout = plan_layout(planned, manifest_bytes=PAGE, block_bytes=block_bytes)

    ranges = [layout.block_range(index) for index in range(layout.block_count)]

    assert sum(end - start for start, end in ranges) == layout.body_end - layout.body_offset
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert all(end > start for start, end in ranges)
    assert layout.block_count <= MAX_BLOCKS


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**36, 2**36 + 1, 2**40, 2**60])
def test_blocks_grow_with_the_body_so_that_digests_stay_few(length: int) -> None:
    block_bytes = choose_block_bytes(length)

    assert block_bytes & (block_bytes - 1) == 0
    assert -(-length // block_bytes) <= MAX_BLOCKS
    assert block_bytes == MIN_BLOCK_BYTES or -(-length // (block_bytes // 2)) > MAX_BLOCKS


@pytest.mark.parametrize("remainder", range(0, PAGE, BLOCK))
def test_what_follows_the_body_fits_into_three_pages(remainder: int) -> None:
    layout = plan_layout([("a", remainder)], manifest_bytes=PAGE, block_bytes=MIN_BLOCK_BYTES)

    assert layout.size - layout.body_end <= 3 * PAGE


def test_padding_stays_under_two_pages_a_member() -> None:
    planned = [(f"member-{index}", 4096 * index) for index in range(100)]

    layout = plan_layout(planned, manifest_bytes=PAGE, block_bytes=MIN_BLOCK_BYTES)

    assert layout.size - sum(size for _, size in planned) <= (len(planned) + 3) * 2 * PAGE


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a", "a"], "member 'a' appears twice"),
        (["a", "A"], "member 'A' appears twice, is reserved, or differs from another only in case"),
        (["manifest.json"], "member 'manifest.json'"),
        (["Commit"], "member 'Commit'"),
        (["a", "a/b"], "member 'a' is also the folder"),
        (["a/b/c", "x", "A/B"], "member 'a/b' is also the folder"),
        (["a", "a-", "a/b"], "member 'a' is also the folder"),
        (["../a"], "member name '../a'"),
    ],
)
def test_members_that_cannot_be_extracted_side_by_side_are_refused(names: list[str], words: str) -> None:
    why = check_members([(name, 1) for name in names])

    assert why is not None
    assert why.startswith(words)


@pytest.mark.parametrize(
    "names", [[], ["a", "b"], ["a/b", "a/c"], ["a-b", "a/b", "a.b"], ["x/COMMIT", "x/manifest.json"]]
)
def test_members_with_different_names_are_accepted(names: list[str]) -> None:
    assert check_members([(name, 1) for name in names]) is None


@pytest.mark.parametrize("size", [-1, 2**60 + 1, 10**40])
def test_impossible_sizes_are_refused(size: int) -> None:
    assert "impossible size" in (check_members([("a", size)]) or "")


def test_too_many_members_are_refused() -> None:
    assert check_members([(f"m{index}", 0) for index in range(MAX_MEMBERS)]) is None
    assert "at most 10000" in (check_members([(f"m{index}", 0) for index in range(MAX_MEMBERS + 1)]) or "")


def test_deep_names_cost_no_more_memory_than_they_are_long() -> None:
    planned = [(f"{index:05d}" + "/a" * 509, 0) for index in range(200)]

    tracemalloc.start()
    try:
        assert check_members(planned) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 10 * sum(len(name) for name, _ in planned)
