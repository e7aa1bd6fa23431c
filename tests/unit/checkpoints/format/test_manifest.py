from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.checkpoints import Archive, Checkpointer
from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, UnsupportedArchive
from chockstone.checkpoints.format.layout import COMMIT_BYTES, plan_layout
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
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Sink
from support.archives import BytesSource, assert_same, write_archive
from support.tensors import ones

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PLAIN = Manifest(kind="weights", step=7, created_at=NOON, members=(("state.json", 10), ("model.safetensors", 5000)))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    offset = timezone(timedelta(minutes=draw(st.integers(-720, 720))))
    return Manifest(
        kind=draw(st.sampled_from(["weights", "sampler_weights", "x", "k" * 64])),
        step=draw(st.none() | st.integers(0, 2**63 - 1)),
        created_at=draw(st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1))).replace(tzinfo=offset),
        members=tuple((f"m{i}", draw(st.integers(0, 2**40))) for i in range(draw(st.integers(0, 6)))),
        metrics=draw(st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3)),
        metadata=draw(st.dictionaries(st.text(), JSON, max_size=3)),
        pinned=draw(st.booleans()),
        ttl_seconds=draw(st.none() | st.floats(1e-3, 1e12)),
    )


def digests_of(manifest: Manifest) -> bytes:
    count = manifest.plan().block_count
    return b"".join(hashlib.md5(str(index).encode()).digest() for index in range(count))[: DIGEST_BYTES * count]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(manifests())
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    manifest.check()
    layout, digests = manifest.plan(), digests_of(manifest)

    payload = manifest.encode(digests, layout)
    found, found_layout, found_digests = decode_manifest(payload)

    assert found == manifest
    assert found_layout == layout
    assert found_digests == digests
    assert len(payload) == layout.manifest.size


def test_its_length_is_known_before_the_digests_are() -> None:
    layout = PLAIN.plan()

    payloads = [PLAIN.encode(bytes([byte]) * DIGEST_BYTES * layout.block_count, layout) for byte in (0, 255)]

    assert {len(payload) for payload in payloads} == {layout.manifest.size}
    assert layout.manifest.size % PAGE == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324])
def test_metrics_of_a_diverged_run_are_kept(value: float) -> None:
    manifest = replace(PLAIN, metrics={"loss": value})

    found, _, _ = decode_manifest(manifest.encode(digests_of(manifest), manifest.plan()))

    assert repr(found.metrics["loss"]) == repr(value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": ""}, "kind ''"),
        ({"kind": "Weights"}, "kind 'Weights'"),
        ({"kind": "a\n"}, "kind 'a"),
        ({"step": -1}, "step -1"),
        ({"step": 2**63}, "step 9223372036854775808"),
        ({"ttl_seconds": 0.0}, "ttl_seconds 0.0"),
        ({"ttl_seconds": math.nan}, "ttl_seconds nan"),
        ({"created_at": datetime(2026, 3, 1)}, "created_at"),
        ({"created_at": datetime(1969, 1, 1, tzinfo=UTC)}, "created_at"),
        ({"members": (("../x", 1),)}, "member name '../x'"),
    ],
)
def test_facts_that_make_no_sense_are_refused_before_writing(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        replace(PLAIN, **changes).check()


@pytest.mark.parametrize("metadata", [{"a": math.nan}, {"a": object()}, {"a": {1, 2}}, {("a",): 1}])
def test_metadata_that_is_no_plain_json_is_refused(metadata: dict[Any, Any]) -> None:
    with pytest.raises(CheckpointError, match="metadata is not plain JSON"):
        replace(PLAIN, metadata=metadata).plan()


def test_metadata_that_refers_to_itself_is_refused() -> None:
    metadata: dict[str, Any] = {}
    metadata["again"] = metadata

    with pytest.raises(CheckpointError, match="metadata is not plain JSON"):
        replace(PLAIN, metadata=metadata).plan()


def test_metadata_over_the_limit_is_refused_with_advice() -> None:
    with pytest.raises(
        CheckpointError, match="over the limit of 16777216; put large metadata into the state or a file"
    ):
        replace(PLAIN, metadata={"a": "x" * MAX_MANIFEST_BYTES}).plan()


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": None},
        {"metadata": ["a", "list"]},
        {"metadata": "text"},
        pytest.param({"pinned": 1}),
        {"step": True, "name": "named"},
        {"step": 5.0, "name": "named"},
        pytest.param({"ttl_seconds": 10**400}),
    ],
    ids=lambda options: f"{options!r:.40}",
)
def test_what_was_saved_can_be_loaded_or_was_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        try:
            handle = checkpointer.save({"a": ones(2)}, **{"step": 1, **options})
            name = handle.result().name
        except (CheckpointError, TypeError, ValueError):
            return

        assert_same(checkpointer.load(name=name)["a"], ones(2))


@pytest.mark.parametrize("metrics", [{"loss": "high"}, {"loss": None}, {"loss": [1.0]}])
def test_a_metric_that_is_no_number_is_refused_at_the_door(tmp_path: Path, metrics: dict[str, Any]) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises((CheckpointError, TypeError, ValueError)):
        checkpointer.save({"a": 1}, step=1, metrics=metrics)


class Busy(FileStore):
    """A file store; as a write begins, the training loop has gone on and changed its own objects."""

    def __init__(self, root: Path, history: list[int]) -> None:
        super().__init__(root)
        self._history = history

    def begin(self, name: str, size: int) -> Sink:
        self._history.extend(range(10_000))
        return super().begin(name, size)


def test_metadata_may_be_changed_as_soon_as_save_returns(tmp_path: Path) -> None:
    history = [1, 2, 3]
    with Checkpointer(Busy(tmp_path, history)) as checkpointer:
        name = checkpointer.save({"a": ones(2)}, step=1, metadata={"history": history}).result().name

        with Archive(checkpointer.store.open(name)) as archive:
            metadata = archive.manifest.metadata

    assert metadata == {"history": [1, 2, 3]}


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[1,]", b"nul", b"[" * 10**5, b"9" * 5000, b'{"a":1}x'])
def test_json_that_cannot_be_parsed_is_damage(text: bytes) -> None:
    with pytest.raises(DamagedArchive, match="thing is not valid JSON"):
        parse_json(text, what="thing")


def test_another_version_is_not_supported_rather_than_damaged() -> None:
    payload = PLAIN.encode(digests_of(PLAIN), PLAIN.plan())

    with pytest.raises(UnsupportedArchive, match="format version"):
        decode_manifest(payload.replace(b'"version": 1', b'"version": 2'))


def test_commit_seals_the_manifest_in_a_form_sha256sum_understands() -> None:
    layout = PLAIN.plan()
    payload = PLAIN.encode(digests_of(PLAIN), layout)

    tail = render_tail(payload, layout, mtime=PLAIN.mtime)

    start = layout.commit.offset - layout.body_end
    note, seal = tail[start : start + COMMIT_BYTES].splitlines(keepends=True)
    assert seal == f"{hashlib.sha256(payload).hexdigest()}  manifest.json\n".encode() == seal_of(payload)
    assert note.startswith(b"# chockstone archive 1, ")
    assert f"{layout.size:020d} bytes".encode() in note
    assert not tail[start + COMMIT_BYTES :].strip(b"\0")
    assert len(tail) == layout.size - layout.body_end


def test_the_head_ends_where_the_body_starts() -> None:
    layout = PLAIN.plan()

    head = render_head(PLAIN.encode(digests_of(PLAIN), layout), mtime=PLAIN.mtime)

    assert len(head) == layout.body_offset


def test_the_layout_a_reader_derives_is_the_one_that_was_written(tmp_path: Path) -> None:
    path = write_archive(tmp_path, metadata={"a": "b" * 9000}, files={"d/config.json": b"{}"})

    with Archive(BytesSource(path.read_bytes())) as archive:
        layout, manifest = archive.layout, archive.manifest

    assert layout.size == path.stat().st_size
    assert layout == plan_layout(manifest.members, manifest_bytes=layout.manifest.size, block_bytes=layout.block_bytes)
    assert [name for name, _ in manifest.members][:2] == ["state.json", "d/config.json"]


def test_a_checkpoint_expires_when_its_time_to_live_has_passed() -> None:
    manifest = replace(PLAIN, ttl_seconds=60.0)

    assert not manifest.is_expired(NOON + timedelta(seconds=59.9))
    assert manifest.is_expired(NOON + timedelta(seconds=60))
    assert not PLAIN.is_expired(NOON + timedelta(days=10_000))
