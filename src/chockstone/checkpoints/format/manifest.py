"""Manifest: what an archive says about itself, and the COMMIT member that seals it.

The manifest lists the members in order with their sizes and one digest per block of the body. Its
length is known before the digests are, because digests have a fixed width.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, ForeignArchive, UnsupportedArchive
from chockstone.checkpoints.format.layout import (
    COMMIT_BYTES,
    MANIFEST,
    Layout,
    body_bytes,
    check_members,
    choose_block_bytes,
    count_blocks,
    known_block_bytes,
    plan_layout,
)
from chockstone.checkpoints.format.tar import PAGE, render_headers, round_up

FORMAT: Final = "chockstone-archive"
VERSION: Final = 1
DIGEST: Final = "xxh3-128"
DIGEST_BYTES: Final = 16
MAX_MANIFEST_BYTES: Final = 16 * 1024**2

T = TypeVar("T")

_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_HEX = re.compile(r"(?:[0-9a-f]{32})*\Z")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Facts about one checkpoint. ``metadata`` is the caller's own JSON; nothing here reads it."""

    kind: str
    step: int | None
    created_at: datetime
    members: tuple[tuple[str, int], ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)  # Any: plain JSON of the caller's
    pinned: bool = False
    ttl_seconds: float | None = None

    @property
    def mtime(self) -> int:
        return int(self.created_at.timestamp())

    def is_expired(self, now: datetime) -> bool:
        return self.ttl_seconds is not None and (now - self.created_at).total_seconds() >= self.ttl_seconds

    def check(self) -> None:
        """Raise if this manifest could not be written and read back."""
        if not _KIND.match(self.kind):
            raise CheckpointError(f"kind {self.kind!r:.80} is not a word of lower-case letters, digits and '_'")
        if self.step is not None and not 0 <= self.step < 2**63:
            raise CheckpointError(f"step {self.step!r} is not between 0 and 2**63")
        if self.ttl_seconds is not None and not (0 < self.ttl_seconds < math.inf):
            raise CheckpointError(f"ttl_seconds {self.ttl_seconds!r} is not a positive number of seconds")
        if self.created_at.tzinfo is None or not 0 <= self.mtime < 8**11:
            raise CheckpointError(f"created_at {self.created_at!r} needs a time zone and a year after 1969")
        if why := check_members(self.members):
            raise CheckpointError(why)

    def plan(self) -> Layout:
        length = body_bytes(self.members)
        block_bytes = choose_block_bytes(length)
        digests = bytes(DIGEST_BYTES * count_blocks(length, block_bytes))
        size = len(self._encode(digests, block_bytes))
        if size > MAX_MANIFEST_BYTES:
            raise CheckpointError(
                f"the manifest would take {size} bytes, over the limit of {MAX_MANIFEST_BYTES}; "
                "put large metadata into the state or a file of its own"
            )
        return plan_layout(self.members, manifest_bytes=size, block_bytes=block_bytes)

    def encode(self, digests: bytes, layout: Layout) -> bytes:
        """The payload of ``manifest.json``, exactly ``layout.manifest.size`` bytes."""
        return self._encode(digests, layout.block_bytes)

    def _encode(self, digests: bytes, block_bytes: int) -> bytes:
        document = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "step": self.step,
            "created_at": self.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
            "pinned": self.pinned,
            "ttl_seconds": self.ttl_seconds,
            "metrics": {name: encode_number(value) for name, value in self.metrics.items()},
            "metadata": self.metadata,
            "members": [{"name": name, "size": size} for name, size in self.members],
            "digest": DIGEST,
            "block_bytes": block_bytes,
            "blocks": digests.hex(),
        }
        try:
            text = json.dumps(document, indent=1, allow_nan=False).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"metadata is not plain JSON: {error}") from error
        return text.ljust(round_up(len(text) + 1, PAGE) - 1, b" ") + b"\n"


def encode_number(value: float) -> float | str:
    """JSON has no nan and no infinities; a diverged run still deserves its checkpoint."""
    number = float(value)
    return number if math.isfinite(number) else repr(number)


def decode_manifest(payload: bytes) -> tuple[Manifest, Layout, bytes]:
    """Parse and check a manifest's payload. Returns it with its layout and the digests of its blocks."""
    document = parse_json(payload, what="manifest.json")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ForeignArchive("manifest.json is not that of a Chockstone archive")
    version = document.get("version")
    if version != VERSION:
        raise UnsupportedArchive(
            f"the archive has format version {version!r:.40} and this Chockstone reads version {VERSION}; "
            "use the version that wrote it, or a newer one"
        )
    try:
        manifest = _decode_facts(document)
        manifest.check()
    except (KeyError, TypeError, ValueError, OverflowError, CheckpointError) as error:
        raise DamagedArchive(
            f"manifest.json does not make sense: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    return manifest, *_decode_blocks(document, manifest, len(payload))


def _decode_facts(document: dict[str, Any]) -> Manifest:
    members = document["members"]
    metrics = document["metrics"]
    metadata = document["metadata"]
    if not (isinstance(members, list) and isinstance(metrics, dict) and isinstance(metadata, dict)):
        raise TypeError("members, metrics or metadata has the wrong type")
    return Manifest(
        kind=_of_type(document["kind"], str),
        step=None if document["step"] is None else _of_type(document["step"], int),
        created_at=datetime.fromisoformat(_of_type(document["created_at"], str)),
        members=tuple((_of_type(m["name"], str), _of_type(m["size"], int)) for m in members),
        metrics={name: float(value) for name, value in metrics.items()},
        metadata=metadata,
        pinned=_of_type(document["pinned"], bool),
        ttl_seconds=None if document["ttl_seconds"] is None else float(document["ttl_seconds"]),
    )


def _of_type(value: object, wanted: type[T]) -> T:
    if type(value) is not wanted:
        raise TypeError(f"expected {wanted.__name__}, found {type(value).__name__}")
    return value


def _decode_blocks(document: dict[str, Any], manifest: Manifest, payload_bytes: int) -> tuple[Layout, bytes]:
    block_bytes, blocks = document.get("block_bytes"), document.get("blocks")
    if document.get("digest") != DIGEST:
        raise UnsupportedArchive(f"unknown digest {document.get('digest')!r:.40}; this version knows {DIGEST!r}")
    if type(block_bytes) is not int or block_bytes not in known_block_bytes(body_bytes(manifest.members)):
        raise DamagedArchive(f"manifest.json has an impossible block size of {block_bytes!r:.40}")
    if payload_bytes % PAGE:
        raise DamagedArchive(f"manifest.json has {payload_bytes} bytes, not a whole number of pages")
    layout = plan_layout(manifest.members, manifest_bytes=payload_bytes, block_bytes=block_bytes)
    if not isinstance(blocks, str) or len(blocks) != 2 * DIGEST_BYTES * layout.block_count or not _HEX.match(blocks):
        raise DamagedArchive(f"manifest.json does not hold one digest for each of {layout.block_count} blocks")
    return layout, bytes.fromhex(blocks)


def parse_json(payload: bytes, *, what: str) -> Any:
    """Parse JSON that may be hostile. The caller has bounded its size."""
    try:
        return json.loads(payload.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedArchive(f"{what} is not valid JSON: {type(error).__name__}: {str(error)[:200]}") from error


def render_head(payload: bytes, *, mtime: int) -> bytes:
    """Everything before the body, given the manifest's payload."""
    return render_headers(MANIFEST, size=len(payload), header_offset=0, mtime=mtime) + payload


def seal_of(payload: bytes) -> bytes:
    """The line of COMMIT that binds a manifest; every format version keeps it in the last page."""
    return f"{hashlib.sha256(payload).hexdigest()}  {MANIFEST}\n".encode("ascii")


def render_tail(payload: bytes, layout: Layout, *, mtime: int) -> bytes:
    """Everything after the body. ``sha256sum -c COMMIT`` understands the member, too."""
    commit = layout.commit
    seal = seal_of(payload)
    note = f"# chockstone archive {VERSION}, {layout.size:020d} bytes".encode("ascii")
    text = note.ljust(COMMIT_BYTES - len(seal) - 1) + b"\n" + seal
    headers = render_headers(commit.name, size=commit.size, header_offset=commit.header_offset, mtime=mtime)
    return (headers + text).ljust(layout.size - commit.header_offset, b"\0")
