"""Readers: verified bytes from an archive to many targets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Archive, verify_archive
from chockstone.checkpoints.errors import DigestMismatch
from chockstone.checkpoints.restoring.restore import load_state, restore_state
from support.archives import BytesSource, assert_same, open_file, small_state, write_archive


def test_verifying_reports_every_byte_of_the_body(large: bytes) -> None:
    seen: list[int] = []

    with Archive(BytesSource(large)) as archive:
        count = verify_archive(archive, on_bytes=seen.append)
        run_blocks = max(1, archive.run_bytes // archive.layout.block_bytes)

    assert count == archive.layout.block_count
    assert len(seen) == -(-count // run_blocks)  # one for each read
    assert sum(seen) == archive.layout.body_end - archive.layout.body_offset


def test_bytes_are_verified_on_the_read_that_hands_them_out(tmp_path: Path) -> None:
    content = write_archive(tmp_path).read_bytes()
    with Archive(BytesSource(content)) as archive:
        spot = archive.tensors("model.safetensors")["weight"].offset

    for bad_read in (None, 1, 2, 3, 4, 5):
        try:
            with Archive(Flaky(content, spot, bad_read=bad_read)) as archive:
                found = load_state(archive)
        except DigestMismatch:
            continue  # found out, which is as good as not met

        assert_same(found, small_state(), f"bad read {bad_read}: state")


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_a_tied_tensor_fills_every_tensor_it_is_restored_into(tmp_path: Path, form: str) -> None:
    weight: Any = np.arange(3_000_000, dtype=np.int32)
    weight = pytest.importorskip("torch").from_numpy(weight) if form == "torch" else weight
    path = write_archive(tmp_path, {"model": {"embed": weight, "head": weight}})
    into = {"model": {"embed": weight * 0, "head": weight * 0}}

    with open_file(path) as archive:
        restore_state(archive, into)

    assert_same(into["model"]["embed"], weight)
    assert_same(into["model"]["head"], weight)


class Flaky(BytesSource):
    """A disk that gives one byte wrongly: on its ``bad_read``-th read, or to every thread but the main one."""

    def __init__(self, content: bytes, spot: int, *, bad_read: int | None) -> None:
        super().__init__(content)
        self._spot = spot
        self._bad_read = bad_read
        self._count = 0

    def read_into(self, offset: int, target: memoryview) -> None:
        super().read_into(offset, target)
        if offset <= self._spot < offset + len(target):
            self._count += 1
            aside = threading.current_thread() is not threading.main_thread()
            if aside if self._bad_read is None else self._count == self._bad_read:
                target[self._spot - offset] ^= 1
