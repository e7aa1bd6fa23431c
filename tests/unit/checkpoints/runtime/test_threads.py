"""Priorities of background threads."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints import Archive, Checkpointer
from chockstone.checkpoints.reading.reader import Reader
from support.tensors import arange

A_YEAR = 1.0  # bytes per second, for a state of many megabytes: a test that waited for it would never end


def state() -> dict[str, object]:
    return {"weights": arange(4 << 20)}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_the_thread_that_saves_gives_way_and_no_other(tmp_path: Path) -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before, seen = niceness(), []
    with Checkpointer(tmp_path, bytes_per_second=A_YEAR) as checkpointer:
        handle = checkpointer.save(state(), step=1)
        handle.add_done_callback(lambda _: seen.append(niceness()))  # it is not done before somebody waits
        handle.result()
    assert seen == [max(10, before)]
    assert niceness() == before


async def test_a_load_beside_an_event_loop_leaves_it_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[int] = []
    begin = Reader.__init__

    def watched(self: Reader, archive: Archive, *arguments: Any) -> None:
        readers.append(archive.readers)
        begin(self, archive, *arguments)

    monkeypatch.setattr(Reader, "__init__", watched)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state(), step=1).result()
        checkpointer.restore(state())
        await checkpointer.restore_async(state())

    alone, beside = readers
    assert beside == 1 < alone
