"""Archives: one checkpoint open for reading, in place and without trust.

Opening checks size, manifest, COMMIT and every tar header, all small. Tensor bytes are checked
against their block's digest before they are handed out: all blocks that a read touches ("full"),
one in sixteen ("sampled"), or none ("off"). A read touches no other block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

import xxhash

from chockstone.checkpoints.errors import (
    DamagedArchive,
    DigestMismatch,
    ForeignArchive,
    SealMismatch,
    TruncatedArchive,
    UncommittedArchive,
    UnsupportedArchive,
)
from chockstone.checkpoints.format.host_memory import allocate
from chockstone.checkpoints.format.layout import MANIFEST, MANIFEST_OFFSET, Layout, Member
from chockstone.checkpoints.format.manifest import (
    DIGEST_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    decode_manifest,
    parse_json,
    render_head,
    render_tail,
    seal_of,
)
from chockstone.checkpoints.format.safetensors_header import (
    LENGTH_BYTES,
    SUFFIX,
    TensorEntry,
    header_bytes,
    parse_header,
)
from chockstone.checkpoints.format.tar import BLOCK, PAGE, describe_header, render_headers, round_up
from chockstone.checkpoints.format.tree import MAX_STATE_BYTES, STATE
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.checkpoints.stores.store import ArchiveSource

Verify = Literal["full", "sampled", "off"]
SAMPLE_EVERY: Final = 16
_FIRST_READ_BYTES: Final = 64 * 1024
_LAST_READ_BYTES: Final = 3 * PAGE  # the longest tail: COMMIT's headers may need almost two pages
_SMALLEST_BYTES: Final = MANIFEST_OFFSET + 3 * PAGE


class ArchiveTensor(NamedTuple):
    """One tensor of an archive and where its bytes are in the file."""

    member: str
    entry: TensorEntry
    offset: int  # absolute

    @property
    def path(self) -> str:
        return f"{self.member.removesuffix(SUFFIX)}.{self.entry.key}"


class Archive:
    """One open checkpoint. Reads verify the blocks they touch. Use it as a context manager, or close it."""

    def __init__(self, source: ArchiveSource, *, verify: Verify = "full", seal: str | None = None) -> None:
        """Check the structure of ``source``. Owns and closes it from here on, also when this raises.

        ``seal``: of the expected archive; SealMismatch for every other one. Later reads use the same open file, so it
        cannot be replaced in between.
        """
        self._source = source
        self.verify_policy: Verify = verify
        self._verified: set[int] = set()
        self._window = (0, 0, memoryview(b""))
        try:
            if verify not in ("full", "sampled", "off"):
                raise ValueError(f"verify={verify!r}: choose 'full', 'sampled' or 'off'")
            head = read_head(source)
            self.manifest, self.layout, self._digests, self.seal = head
            if seal is not None and self.seal != seal:
                raise SealMismatch(expected=seal, found=self.seal)
            self.members: dict[str, Member] = {member.name: member for member in self.layout.members}
            self._check_headers()
        except BaseException:
            source.close()
            raise

    @classmethod
    def open(cls, path: str | Path, *, verify: Verify = "full") -> Self:
        """An archive that is a file, wherever it lies."""
        return cls(open_file(Path(path)), verify=verify)

    def close(self) -> None:
        """Close the file. Tensors that ``load_state`` mapped stay valid."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Of the whole archive, in bytes."""
        return self.layout.size

    @property
    def run_bytes(self) -> int:
        """How much to read at once when reading a lot."""
        return self._source.run_bytes

    @property
    def readers(self) -> int:
        """How many threads read at full speed."""
        return self._source.readers

    @property
    def blocks_verified(self) -> int:
        """How many blocks were verified so far."""
        return len(self._verified)

    def read(self, member: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes of one member, verified; touches only the blocks they lie in."""
        place = self._member(member)
        size = place.size - start if size is None else size
        if start < 0 or size < 0 or start + size > place.size:
            raise ValueError(f"bytes {start} to {start + size} are not inside {member!r} of {place.size} bytes")
        return self.read_range(place.offset + start, size)

    def read_range(self, offset: int, size: int) -> bytes:
        """Bytes of the body by absolute offset, verified."""
        if size == 0:
            return b""
        layout = self.layout
        if not (layout.body_offset <= offset and offset + size <= layout.body_end):
            raise ValueError(f"bytes {offset} to {offset + size} are not inside the body of the archive")
        start, end, blocks = self._window
        if not (start <= offset and offset + size <= end):
            start, end, blocks = self._window = self.read_blocks(offset, size)  # small reads mostly fall into them
        return bytes(blocks[offset - start : offset - start + size])

    def read_blocks(self, offset: int, size: int) -> tuple[int, int, memoryview]:
        """(start, end, bytes) of the blocks around a range, verified. Thread-safe."""
        layout = self.layout
        first = (offset - layout.body_offset) // layout.block_bytes
        last = (offset + size - 1 - layout.body_offset) // layout.block_bytes
        start, end = layout.block_range(first)[0], layout.block_range(last)[1]
        memory = allocate(end - start).data
        self._source.read_into(start, memory[: min(len(memory), layout.size - start)])
        for index in range(first, last + 1):
            if self.should_verify(index):
                a, b = layout.block_range(index)
                self.check_block(index, memory[a - start : b - start])
        return start, end, memory

    def should_verify(self, index: int) -> bool:
        """Whether the policy verifies this block. A block is verified at every read, not only at the first."""
        if self.verify_policy == "sampled":
            return index % SAMPLE_EVERY == 0 or index == self.layout.block_count - 1
        return self.verify_policy == "full"

    def check_block(self, index: int, content: memoryview) -> None:
        wanted = self._digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)]
        if xxhash.xxh3_128_digest(content) != wanted:
            start, end = self.layout.block_range(index)
            names = [m.name for m in self.layout.members if m.header_offset < end and start < round_up(m.end, BLOCK)]
            raise DigestMismatch(
                f"block {index} of {self.layout.block_count}, {end - start} bytes in {', '.join(names)}, "
                "is not what was written",
                where=start,
            )
        self._verified.add(index)

    def state(self) -> Any:
        """The skeleton of the state, as JSON. See ``tree.unflatten``."""
        if STATE not in self.members:
            raise ForeignArchive(f"the archive holds files but no state: it has no member {STATE!r}")
        if self.members[STATE].size > MAX_STATE_BYTES:
            raise DamagedArchive(f"{STATE} claims {self.members[STATE].size} bytes, over {MAX_STATE_BYTES}")
        return parse_json(self.read(STATE), what=STATE)

    def tensors(self, member: str) -> dict[str, ArchiveTensor]:
        """The tensors of one safetensors member by key."""
        place = self._member(member)
        prefix = self.read(member, 0, min(LENGTH_BYTES, place.size))
        header = self.read(member, 0, header_bytes(prefix, member=member, member_bytes=place.size))
        entries = parse_header(header, member=member, member_bytes=place.size)
        return {key: ArchiveTensor(member, entry, place.offset + entry.start) for key, entry in entries.items()}

    def all_tensors(self) -> Iterator[ArchiveTensor]:
        for name in self.members:
            if name.endswith(SUFFIX):
                yield from self.tensors(name).values()

    def map(self) -> memoryview | None:
        return self._source.map()

    def descriptor(self) -> int | None:
        return self._source.descriptor()

    def read_into(self, offset: int, target: memoryview) -> None:
        """Raw bytes, not verified; for readers that verify whole blocks themselves."""
        self._source.read_into(offset, target)

    def _member(self, name: str) -> Member:
        try:
            return self.members[name]
        except KeyError:
            raise KeyError(f"no member {name!r}; the archive holds {', '.join(self.members) or 'none'}") from None

    def _check_headers(self) -> None:
        """Compare every tar header with the one that must be there."""
        for member in self.layout.members:
            expected = render_headers(
                member.name, size=member.size, header_offset=member.header_offset, mtime=self.manifest.mtime
            )
            found = _read(self._source, member.header_offset, len(expected))
            if found != expected:
                raise DamagedArchive(
                    f"instead of the header of member {member.name!r} of {member.size} bytes there is "
                    f"{describe_header(found[:BLOCK])}, then {describe_header(found[-BLOCK:])}",
                    where=member.header_offset,
                )


class Head(NamedTuple):
    manifest: Manifest
    layout: Layout
    digests: bytes
    seal: str  # SHA-256 of manifest.json, in hexadecimal: two archives with one seal are the same


def read_head(source: ArchiveSource) -> Head:
    """The head of an archive, checked against COMMIT and the size; two small reads as a rule."""
    if source.size < _SMALLEST_BYTES:
        raise TruncatedArchive(f"{source.size} bytes are too few for an archive")
    start = _read(source, 0, min(source.size, _FIRST_READ_BYTES))
    end = _read(source, source.size - _LAST_READ_BYTES, _LAST_READ_BYTES)
    size = _manifest_size(start[MANIFEST_OFFSET - BLOCK : MANIFEST_OFFSET], source.size)
    payload = start[MANIFEST_OFFSET : MANIFEST_OFFSET + size]
    if len(payload) < size:
        payload = _read(source, MANIFEST_OFFSET, size)
    try:
        manifest, layout, digests = decode_manifest(payload)
    except (ForeignArchive, UnsupportedArchive) as error:
        if seal_of(payload) in end:
            raise  # written so, by another version
        raise UncommittedArchive(f"{MANIFEST} was changed after the write, or never finished: {error}") from error
    if source.size != layout.size:
        raise TruncatedArchive(f"the archive has {source.size} bytes and not {layout.size}", where=source.size)
    tail = end[layout.body_end - layout.size :]
    if tail != render_tail(payload, layout, mtime=manifest.mtime):
        raise UncommittedArchive(_explain_tail(tail, layout), where=layout.body_end)
    if start[:MANIFEST_OFFSET] != render_head(payload, mtime=manifest.mtime)[:MANIFEST_OFFSET]:
        raise DamagedArchive(f"the header of {MANIFEST} is not the one its content calls for", where=0)
    return Head(manifest, layout, digests, hashlib.sha256(payload).hexdigest())


def _read(source: ArchiveSource, offset: int, size: int) -> bytes:
    content = bytearray(size)
    source.read_into(offset, memoryview(content))
    return bytes(content)


def _manifest_size(header: bytes, available: int) -> int:
    """From the one field that is read before anything can be checked."""
    if header[257:262] != b"ustar" or not header.startswith(MANIFEST.encode() + b"\0"):
        raise ForeignArchive(f"this is no Chockstone archive: its first member is {describe_header(header)}")
    try:
        size = int(header[124:135], 8)
    except ValueError:
        raise DamagedArchive(f"the size of {MANIFEST} is not a number", where=MANIFEST_OFFSET - BLOCK) from None
    if not 0 < size <= MAX_MANIFEST_BYTES:
        raise DamagedArchive(f"{MANIFEST} claims {size} bytes", where=MANIFEST_OFFSET - BLOCK)
    if MANIFEST_OFFSET + size > available:
        raise TruncatedArchive(f"{MANIFEST} claims {size} bytes and the archive ends after {available}")
    return size


def _explain_tail(tail: bytes, layout: Layout) -> str:
    start = layout.commit.offset - layout.body_end
    if not tail[start : start + layout.commit.size].strip(b"\0"):
        return "the archive has no COMMIT member: its write was never finished"
    return "COMMIT does not seal this manifest: one of the two was changed after the write"
