"""Layout: where every byte of an archive goes, known before the first one is written.

    manifest.json | body: the other members | COMMIT | zeros

The manifest's payload is padded to whole pages, so the body starts on a page and its length does
not depend on the manifest. Writer and reader both derive all offsets from (name, size) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chockstone.checkpoints.format.tar import BLOCK, PAGE, check_member_name, payload_offset, round_up

MANIFEST: Final = "manifest.json"
COMMIT: Final = "COMMIT"
COMMIT_BYTES: Final = 140  # fixed, see ``manifest.render_tail``
MANIFEST_OFFSET: Final = PAGE
MIN_BLOCK_BYTES: Final = 256 * 1024  # ranks that meet in a block both read all of it
_FORMER_MIN_BLOCK_BYTES: Final = 1024 * 1024
MAX_BLOCKS: Final = 131_072
MAX_MEMBERS: Final = 10_000
MAX_BLOCK_BYTES: Final = 64 * 1024**2
MAX_BYTES: Final = MAX_BLOCKS * MAX_BLOCK_BYTES - 2**30  # eight tebibytes, less room for headers


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    size: int
    header_offset: int
    offset: int  # of the payload, on a page

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Layout:
    manifest: Member
    members: tuple[Member, ...]  # the body
    commit: Member
    size: int
    block_bytes: int

    @property
    def body_offset(self) -> int:
        return MANIFEST_OFFSET + self.manifest.size

    @property
    def body_end(self) -> int:
        return self.commit.header_offset

    @property
    def block_count(self) -> int:
        return count_blocks(self.body_end - self.body_offset, self.block_bytes)

    def block_range(self, index: int) -> tuple[int, int]:
        start = self.body_offset + index * self.block_bytes
        return start, min(start + self.block_bytes, self.body_end)


def check_members(members: Sequence[tuple[str, int]]) -> str | None:
    """Why these members cannot form an archive, or None if they can."""
    if len(members) > MAX_MEMBERS:
        return f"{len(members)} members; an archive holds at most {MAX_MEMBERS}"
    taken = {MANIFEST.casefold(), COMMIT.casefold()}
    total = 0
    for name, size in members:
        if why := check_member_name(name):
            return f"member name {name[:80]!r}: {why}"
        total += max(size, 0)
        if size < 0 or total > MAX_BYTES:
            return f"member {name[:80]!r} has an impossible size; an archive holds at most {MAX_BYTES} bytes"
        folded = name.casefold()
        if folded in taken:
            return f"member {name[:80]!r} appears twice, is reserved, or differs from another only in case"
        taken.add(folded)
    ordered = sorted(name.replace("/", "\0") for name in taken)  # a folder's files follow it directly
    for name, following in pairwise(ordered):
        if following.startswith(f"{name}\0"):
            shown = name[:80].replace("\0", "/")
            return f"member {shown!r} is also the folder of another member"
    return None


def body_bytes(members: Sequence[tuple[str, int]]) -> int:
    """Length of the body. It starts on a page, so zero stands for its real offset."""
    end = 0
    for name, size in members:
        end = payload_offset(end, name=name, size=size) + round_up(size, BLOCK)
    return end


def choose_block_bytes(length: int) -> int:
    """The smallest power of two from 256 KiB up that keeps the digests of a body few."""
    block_bytes = MIN_BLOCK_BYTES
    while count_blocks(length, block_bytes) > MAX_BLOCKS:
        block_bytes *= 2
    return block_bytes


def known_block_bytes(length: int) -> set[int]:
    """What writers of this format have chosen for a body of that length: the first ones began with 1 MiB."""
    chosen = choose_block_bytes(length)
    return {chosen, max(chosen, _FORMER_MIN_BLOCK_BYTES)}


def count_blocks(length: int, block_bytes: int) -> int:
    return -(-length // block_bytes)


def plan_layout(members: Sequence[tuple[str, int]], *, manifest_bytes: int, block_bytes: int) -> Layout:
    """Place every member. Expects ``check_members`` to have passed and a whole number of pages."""
    manifest = Member(MANIFEST, manifest_bytes, header_offset=0, offset=MANIFEST_OFFSET)
    position = manifest.end
    placed: list[Member] = []
    for name, size in members:
        offset = payload_offset(position, name=name, size=size)
        placed.append(Member(name, size, header_offset=position, offset=offset))
        position = offset + round_up(size, BLOCK)
    commit_offset = payload_offset(position, name=COMMIT, size=COMMIT_BYTES)
    commit = Member(COMMIT, COMMIT_BYTES, header_offset=position, offset=commit_offset)
    end = round_up(commit.end, BLOCK) + 2 * BLOCK  # two zero blocks end a tar
    return Layout(manifest, tuple(placed), commit, round_up(end, PAGE), block_bytes)
