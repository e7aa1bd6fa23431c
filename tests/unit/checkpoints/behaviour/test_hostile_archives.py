from __future__ import annotations

import bisect
import json
import os
import re
import subprocess
import sys
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.checkpoints import Archive, Checkpointer, Retention, list_checkpoints, open_store
from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    ForeignArchive,
    UnsupportedArchive,
)
from chockstone.checkpoints.format.manifest import Manifest, render_head, render_tail
from chockstone.checkpoints.format.tar import render_headers
from chockstone.checkpoints.restoring.restore import load_state, restore_state
from support.archives import NOON, BytesSource, assert_same, load_bytes, open_file, write_archive
from support.hostile_archives import GOOD_STATE, MEBIBYTE, REFERENCE, forge, tensor_file, with_node, with_state
from support.hostile_corpus import Hostile, corpus

CORPUS = corpus()
CPU_SECONDS = 10.0  # what looking at one small hostile file may cost; most take a millisecond
MESSAGE_LIMIT = 4000  # characters an operator has to scroll past


def refusal(content: bytes) -> tuple[Exception | None, int, float]:
    """How loading the archive ends, the peak of Python memory on the way, and the CPU time."""
    caught: Exception | None = None
    tracemalloc.start()
    started = time.process_time()
    try:
        load_bytes(content)
    except Exception as error:
        caught = error
    finally:
        seconds = time.process_time() - started
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return caught, peak_bytes, seconds


@pytest.mark.parametrize(
    "hostile",
    [pytest.param(h, id=h.name) for h in CORPUS],
)
def test_a_hostile_file_is_refused_by_name_at_little_cost(hostile: Hostile) -> None:
    content = hostile.build()

    error, peak_bytes, seconds = refusal(content)

    assert type(error) is hostile.error, repr(error)[:500]
    assert re.search(hostile.says, str(error), re.DOTALL), str(error)[:500]
    assert len(str(error)) < MESSAGE_LIMIT
    assert peak_bytes < hostile.peak_bytes + 8 * len(content)
    assert seconds < CPU_SECONDS


def test_what_the_corpus_is_made_from_is_accepted_without_the_lies() -> None:
    state = load_bytes(with_state(GOOD_STATE))

    assert state["epoch"] == 3
    assert state["model"]["w"].dtype == torch.float32
    assert_same(load_bytes(with_node({"$": "tuple", "items": [1]}))["x"], (1,))


def test_the_names_of_the_corpus_are_its_own() -> None:
    assert len({hostile.name for hostile in CORPUS}) == len(CORPUS)


def test_no_hostile_file_keeps_a_store_from_serving_the_others(tmp_path: Path) -> None:
    write_archive(tmp_path, {"epoch": 7}, step=1)
    for hostile in CORPUS:
        costly = hostile.name.startswith(("bomb-", "manifest-digests-million", "members-too-many", "long-winded"))
        newer = hostile.error is UnsupportedArchive  # stops a restore on purpose
        if not (costly or newer):
            (tmp_path / f"{hostile.name.replace(' ', '')}.tar").write_bytes(hostile.build())

    with Checkpointer(tmp_path) as checkpointer:
        found = checkpointer.load()
        listed = checkpointer.checkpoints()

    assert found == {"epoch": 7}
    sound = [checkpoint.name for checkpoint in listed if checkpoint.damage is None]
    assert "step-00000001" in sound
    assert all(name.startswith(("step-", "header-", "state-", "tensors-", "member-size-one-more")) for name in sound), (
        "a listing reads heads and tails; members are looked at when an archive is opened or loaded"
    )


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param((b"[", b"]"), id="lists"),
        pytest.param((b'{"a":', b"}"), id="objects"),
        pytest.param((b'{"$":"tuple","items":[', b"]}"), id="tuples"),
    ],
)
def test_nesting_of_any_depth_is_refused_or_loaded(wrap: tuple[bytes, bytes]) -> None:
    def ending(depth: int) -> str:
        text = b'{"x":' + wrap[0] * depth + b"1" + wrap[1] * depth + b"}"
        with Archive(BytesSource(with_state(text))) as archive:
            try:
                load_state(archive)
            except (CheckpointError, RecursionError) as error:
                return type(error).__name__
        return "loaded"

    too_deep = bisect.bisect_left(range(sys.getrecursionlimit()), True, key=lambda depth: ending(depth) != "loaded")

    assert too_deep > 100
    assert {ending(depth) for depth in range(too_deep - 20, too_deep + 20)} == {"loaded", "DamagedArchive"}


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("tensors"),
        pytest.param("state"),
    ],
)
def test_a_shape_of_a_million_dimensions_takes_no_time(tmp_path: Path, shape: str) -> None:
    dimensions = b"[" + b"9," * 1_500_000 + b"9]"
    state, entry = json.dumps(GOOD_STATE).encode(), b"[2]"
    if shape == "tensors":
        entry = dimensions
    else:
        state = b'{"model":{"w":{"$":"tensor","group":"model","key":"w","dtype":"F32","shape":' + dimensions + b"}}}"
    header = b'{"w":{"dtype":"F32","shape":' + entry + b',"data_offsets":[0,8]}}'
    path = tmp_path / "dimensions.tar"
    path.write_bytes(forge([("state.json", state), ("model.safetensors", tensor_file(header, bytes(8)))]))

    assert in_a_small_process(path).startswith("refused: ")


def test_sizes_over_the_limits_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "large.tar"
    sparse_archive(path, [("state.json", 64 * MEBIBYTE + 1)])

    with open_file(path) as archive:
        tracemalloc.start()
        try:
            with pytest.raises(DamagedArchive, match=r"state\.json claims 67108865 bytes, over 67108864"):
                archive.state()
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak_bytes < MEBIBYTE


def test_an_archive_that_is_mostly_a_hole_needs_little_memory() -> None:
    """A file of 2**50 bytes costs an attacker a few pages of disk."""
    path = Path("/dev/shm") / f"chockstone-hole-{os.getpid()}.tar"
    try:
        try:
            sparse_archive(path, [("state.json", 2), ("hole.bin", 2**50)])
        except OSError as error:
            pytest.skip(f"no file system for large sparse files: {error}")

        answer = in_a_small_process(path)
    finally:
        path.unlink(missing_ok=True)

    assert answer.startswith("refused: "), answer


def sparse_archive(path: Path, members: list[tuple[str, int]]) -> None:
    """A sealed archive whose payloads are holes, and whose digests are wrong."""
    manifest = Manifest(kind="weights", step=1, created_at=NOON, members=tuple(members))
    layout = manifest.plan()
    payload = manifest.encode(bytes(16 * layout.block_count), layout)
    with path.open("wb") as file:
        file.truncate(layout.size)
        os.pwrite(file.fileno(), render_head(payload, mtime=manifest.mtime), 0)
        for member in layout.members:
            headers = render_headers(
                member.name, size=member.size, header_offset=member.header_offset, mtime=manifest.mtime
            )
            os.pwrite(file.fileno(), headers, member.header_offset)
        os.pwrite(file.fileno(), render_tail(payload, layout, mtime=manifest.mtime), layout.body_end)


_CHILD = """
import resource, sys, time
import torch
from chockstone.checkpoints import Archive, open_store
from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.restoring.restore import restore_state

used = int(time.process_time()) + 1
resource.setrlimit(resource.RLIMIT_CPU, (used + 3, used + 3))
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + 1024**3
resource.setrlimit(resource.RLIMIT_AS, (room, room))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    with Archive(open_store(sys.argv[1]).open(sys.argv[2])) as archive:
        restore_state(archive, {})
    print("restored")
except CheckpointError as error:
    print("refused:", error)
except BaseException as error:
    print(repr(error))
"""


def in_a_small_process(path: Path) -> str:
    """How a restore ends in a process with three seconds of CPU time and one more gigabyte of memory."""
    arguments = [sys.executable, "-c", _CHILD, str(path.parent), path.name.removesuffix(".tar")]
    child = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=240)
    return child.stdout.strip() or f"killed by signal {-child.returncode}"


@pytest.mark.parametrize(
    ("text", "objects_per_byte"),
    [
        (b"{}", 1 / 3),
        (b"[]", 1 / 3),
        (b'""', 1 / 3),
        (b"1.5", 1 / 4),
        (b'{"":0}', 1 / 7),
        (b'{"$":"tuple","items":[]}', 1 / 25),
    ],
    ids=["objects", "lists", "strings", "floats", "pairs", "tuples"],
)
def test_a_state_of_many_small_values_costs_a_bounded_multiple_of_its_size(
    text: bytes, objects_per_byte: float
) -> None:
    state = b'{"x":[' + b",".join([text] * int(MEBIBYTE * objects_per_byte / 8)) + b"]}"

    error, peak_bytes, seconds = refusal(with_state(state))

    assert error is None
    assert peak_bytes < 96 * len(state)
    assert seconds < CPU_SECONDS


class Loader:
    """An object of the user's that trusts its state, as most do."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


@pytest.mark.parametrize(
    ("key", "saved"),
    [
        ("optimizer", {"state": {}, "param_groups": [{"params": 5}]}),
        ("optimizer", {"state": {}, "param_groups": [{"params": None}]}),
        ("optimizer", {"state": 7, "param_groups": [{"params": [0, 1]}]}),
        ("optimizer", {"param_groups": [{"params": [0, 1]}]}),
        ("optimizer", 5),
        ("optimizer", [REFERENCE]),
        ("loader", {}),
        ("loader", 5),
    ],
    ids=["count", "none", "state-number", "no-state", "number", "list", "empty", "loader-number"],
)
def test_a_state_that_its_object_cannot_take_is_refused_as_ours(key: str, saved: object) -> None:
    linear = torch.nn.Linear(2, 2)
    live = {"optimizer": torch.optim.SGD(linear.parameters(), lr=0.1), "loader": Loader()}

    with Archive(BytesSource(with_state({key: saved}))) as archive, pytest.raises(CheckpointError):
        restore_state(archive, {key: live[key]}, strict=False)


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param(5),
        pytest.param(None),
        pytest.param([]),
        {"weight": 5},
        {"weight": REFERENCE},
        {"weight": [REFERENCE]},
    ],
    ids=repr,
)
def test_a_state_that_a_module_cannot_take_is_refused_before_anything_is_touched(saved: object) -> None:
    linear = torch.nn.Linear(2, 2)
    before = linear.weight.detach().clone()

    with Archive(BytesSource(with_state({"model": saved}))) as archive, pytest.raises(CheckpointError):
        restore_state(archive, {"model": linear})

    assert torch.equal(linear.weight, before)


def test_an_archive_without_a_state_does_not_hide_the_one_before_it(tmp_path: Path) -> None:
    write_archive(tmp_path, {"epoch": 7}, step=1)
    files_only = forge([("config.json", b"{}")])
    with pytest.raises(ForeignArchive):
        load_bytes(files_only)
    (tmp_path / "step-00000002.tar").write_bytes(files_only)

    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load() == {"epoch": 7}


LAST_MOMENT = datetime(2242, 3, 16, 12, 56, 31, 999_999, tzinfo=UTC)  # that a tar header has digits for


def test_a_checkpoint_of_the_last_moment_there_is_does_not_keep_later_saves_from_succeeding(tmp_path: Path) -> None:
    (tmp_path / "step-00000009.tar").write_bytes(forge([("state.json", b'{"epoch": 9}')], created_at=LAST_MOMENT))

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.restore({"epoch": 0})

        assert checkpointer.save({"epoch": 10}, step=10).result().step == 10


def test_a_checkpoint_from_the_future_does_not_cost_the_one_just_saved(tmp_path: Path) -> None:
    """It takes no attacker: a machine whose clock once ran ahead is enough."""
    ahead = datetime.now(UTC) + timedelta(days=1)
    (tmp_path / "step-00000009.tar").write_bytes(forge([("state.json", b'{"epoch": 9}')], created_at=ahead))

    with Checkpointer(tmp_path, retention=Retention(keep_last=1)) as checkpointer:
        saved = checkpointer.save({"epoch": 10}, step=10).result()

        assert checkpointer.load(name=saved.name) == {"epoch": 10}


@pytest.mark.parametrize("kind", ["fifo", "directory", "dangling-link", "device", "socket-like-name"])
def test_what_is_no_file_is_no_checkpoint(tmp_path: Path, kind: str) -> None:
    write_archive(tmp_path, {"epoch": 7}, step=1)
    odd = tmp_path / "step-00000002.tar"
    match kind:
        case "fifo":
            os.mkfifo(odd)
        case "directory":
            odd.mkdir()
        case "dangling-link":
            odd.symlink_to("nowhere")
        case "device":
            odd.symlink_to("/dev/zero")
        case _:
            odd.symlink_to(tmp_path)
    store = open_store(tmp_path)

    with pytest.raises(CheckpointMissing):
        store.open("step-00000002")
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load() == {"epoch": 7}
    assert [checkpoint.name for checkpoint in list_checkpoints(store)] == ["step-00000001"]


def test_a_link_that_leads_to_itself_does_not_hide_the_others(tmp_path: Path) -> None:
    write_archive(tmp_path, {"epoch": 7}, step=1)
    (tmp_path / "loop.tar").symlink_to("loop.tar")

    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load() == {"epoch": 7}


@pytest.mark.parametrize(
    "name", ["my backup.tar", "step-1 (copy).tar", "é.tar", "a:b.tar", "x" * 251 + ".tar", b"\xff.tar"]
)
def test_a_file_whose_name_is_none_of_ours_does_not_hide_the_others(tmp_path: Path, name: str | bytes) -> None:
    write_archive(tmp_path, {"epoch": 7}, step=1)
    Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name)))).write_bytes(b"hello")

    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load() == {"epoch": 7}
