"""Disks that fill up, bits that flip, tails that tear, a catalog that is lost: nothing wrong is ever told.

The script is at work all the time, and what it hears in the end is what it would have heard on a good disk.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chockstone.engine.journal.format import SEGMENT_BYTES, pack_record, unpack_segment
from chockstone.engine.journal.scan import scan
from faults.crashes import OFTEN, Client, Heard, RestartedServer, assert_same, until
from sdk.checkpoints import Stored
from sdk.recoveries import recoveries
from support.live import SERVER_PYTHON, LiveServer
from support.stores import IS_S3

SCRIPT = "sft:12"
SELDOM = ("--recovery-steps=1000", "--recovery-replay=1h")  # the journal is all there is
Serve = Callable[..., RestartedServer]


@pytest.fixture(scope="module")
def undisturbed(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    return Client(live, tmp_path_factory.mktemp("undisturbed"), SCRIPT).result()


@pytest.fixture
def serve(models: dict[str, Path], tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(*flags: str, **env: str) -> RestartedServer:
            server = RestartedServer(models, tmp_path / "server", *flags, env=env, is_executed=False)
            return stack.enter_context(server)

        yield start


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path, int], Path]]:
    """Mounts a tmpfs of some megabytes."""
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("this test mounts a small disk and needs root, which CI must have")
        pytest.skip("this test mounts a small disk, which needs root")
    mounts: list[Path] = []

    def mount(place: Path, megabytes: int) -> Path:
        place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], check=True)
        mounts.append(place)
        return place

    yield mount
    for place in mounts:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all there is."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler


def run_folder(server: LiveServer) -> Path:
    """Of the one journal of a run that there is."""
    [folder] = (server.data / "journal" / "runs").iterdir()
    return folder


def newest_segment(server: LiveServer) -> Path:
    return max(run_folder(server).glob("*.journal"))


def recovery_archives(server: LiveServer) -> list[Stored]:
    """Newest last."""
    store = server.store
    return [Stored(store, each.name) for each in store.entries() if "/recovery/" in each.name]


def killed_in_the_middle(server: RestartedServer, home: Path, *, archives: int = 0) -> Client:
    """A script whose server died after a third of it, and stays down until it is released."""
    client = Client(server, home, SCRIPT)
    client.wait_for(20)
    until(lambda: len(recovery_archives(server)) >= archives, f"there are {archives} recovery archives")
    server.hold()
    server.kill_both()
    until(lambda: len(server.deaths) == 1, "the server died")
    return client


def flip(file: Path, part: float) -> None:
    """A bit of it, that far into it."""
    with file.open("r+b") as opened:
        opened.seek(int(file.stat().st_size * part))
        [byte] = opened.read(1)
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 1]))


def tear(segment: Path) -> None:
    """One more record begins at its end, and is not all there."""
    header = unpack_segment(segment.read_bytes()[:SEGMENT_BYTES])
    assert header is not None
    body = b"x" * 1000
    record = pack_record(header.mark, scan(segment).next_sequence, b"{}", body, is_held=False) + b"{}" + body
    with segment.open("ab") as file:
        file.write(record[:-500])


@pytest.mark.soak
def test_training_waits_while_the_journals_disk_is_full(
    serve: Serve, undisturbed: Heard, tmp_path: Path, small_disk: Callable[[Path, int], Path]
) -> None:
    disk = small_disk(tmp_path / "server" / "data" / "journal", 2)
    server = serve(*SELDOM, "--disk-reserve=0")
    client = Client(server, tmp_path, SCRIPT)
    client.wait_for(10)

    filler = fill(disk)
    until(lambda: "full" in server.log(), "the server says that the disk is full")
    time.sleep(3)
    filler.unlink()

    assert_same(client.result(), undisturbed)
    assert server.deaths == []
    assert "Traceback" not in server.log()


def test_a_full_disk_and_a_kill_lose_nothing(
    serve: Serve, undisturbed: Heard, tmp_path: Path, small_disk: Callable[[Path, int], Path]
) -> None:
    disk = small_disk(tmp_path / "server" / "data" / "journal", 2)
    server = serve(*SELDOM, "--disk-reserve=0")
    client = Client(server, tmp_path, SCRIPT)
    client.wait_for(10)

    filler = fill(disk)
    until(lambda: "full" in server.log(), "the server says that the disk is full")
    server.kill_both()
    until(lambda: server.log().count("TINKER_BASE_URL=") == 2, "the server is back, and the disk as full as it was")
    assert server.is_running()
    filler.unlink()

    assert_same(client.result(), undisturbed)
    assert set(server.deaths) == {-9}


@pytest.mark.skipif(IS_S3, reason="a bucket does not fill up")
def test_recovery_archives_wait_for_space_and_training_does_not(
    serve: Serve, undisturbed: Heard, tmp_path: Path, small_disk: Callable[[Path, int], Path]
) -> None:
    """The saves of the script need the disk as well: they fail for want of space, so this one makes none."""
    disk = small_disk(tmp_path / "server" / "data" / "checkpoints", 64)
    server = serve(*OFTEN, "--disk-reserve=0")
    filler = fill(disk)
    client = Client(server, tmp_path, "crowd:4")
    client.wait_for(24)

    filler.unlink()
    heard = client.result()

    assert len(heard.notes["crowd:4"]) == 27
    assert "Traceback" not in server.log()


@pytest.mark.soak
def test_bytes_that_are_no_record_at_its_end_are_cut_off(serve: Serve, undisturbed: Heard, tmp_path: Path) -> None:
    server = serve(*SELDOM)
    client = killed_in_the_middle(server, tmp_path)
    segment = newest_segment(server)
    with segment.open("r+b") as file:
        beginning = file.read(300)
        file.seek(0, 2)
        file.write(beginning[-200:])

    server.release()

    assert_same(client.result(), undisturbed)


def test_a_tail_that_was_never_written_is_done_again(serve: Serve, undisturbed: Heard, tmp_path: Path) -> None:
    """The server died while it wrote down what nobody had been told yet."""
    server = serve(*SELDOM)
    client = killed_in_the_middle(server, tmp_path)
    tear(newest_segment(server))

    server.release()

    assert_same(client.result(), undisturbed)
    assert "torn tail cut off" in server.log()


@pytest.mark.soak
@pytest.mark.parametrize("part", [0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_flipped_bit_is_never_believed(serve: Serve, undisturbed: Heard, tmp_path: Path, part: float) -> None:
    """It hits an operation, of which no archive knows, and the script is told; or a result, which is computed again."""
    server = serve(*SELDOM)
    client = killed_in_the_middle(server, tmp_path)
    flip(newest_segment(server), part)

    server.release()
    for _ in client.lines():
        pass

    try:
        heard = client.result()
    except AssertionError:
        assert "damaged" in client.errors(), client.errors()
        assert "checkpoint" in client.errors()  # from which to go on
    else:
        assert_same(heard, undisturbed)
    assert set(server.deaths) == {-9}
    assert "damaged" in server.log()


@pytest.mark.soak
def test_a_flipped_bit_before_the_archive_is_of_no_account(serve: Serve, undisturbed: Heard, tmp_path: Path) -> None:
    server = serve("--recovery-steps=1")
    client = killed_in_the_middle(server, tmp_path)
    flip(newest_segment(server), 0.02)

    server.release()

    assert_same(client.result(), undisturbed)


def test_a_damaged_archive_is_walked_past(serve: Serve, undisturbed: Heard, tmp_path: Path) -> None:
    server = serve("--recovery-steps=2")
    client = killed_in_the_middle(server, tmp_path, archives=2)
    recovery_archives(server)[-1].flip()

    server.release()
    heard = client.result()

    assert_same(heard, undisturbed)
    receipts = recoveries(server, heard)
    assert any(skipped for receipt in receipts for skipped in receipt["skipped"]), receipts


@pytest.mark.soak
def test_a_lost_catalog_does_not_stop_a_run(serve: Serve, undisturbed: Heard, tmp_path: Path) -> None:
    server = serve(*OFTEN)
    client = killed_in_the_middle(server, tmp_path)
    server.lose_catalog()
    rebuild = ["doctor", "--rebuild", "--data", str(server.data)]
    ran = subprocess.run([SERVER_PYTHON, "-m", "chockstone.cli", *rebuild], env=server.env(), timeout=90)
    assert ran.returncode in (0, 1), "1: something is left to do"

    server.release()

    assert_same(client.result(), undisturbed)


@pytest.mark.soak
def test_a_clock_that_jumps_changes_nothing(serve: Serve, undisturbed: Heard, tmp_path: Path) -> None:
    shift = tmp_path / "shift"
    shift.write_text("0")
    clock = Path(__file__).parents[1] / "faults" / "shifted_clock"
    server = serve(*OFTEN, CLOCK_SHIFT=str(shift), PYTHONPATH=str(clock))
    client = Client(server, tmp_path, SCRIPT)

    client.wait_for(10)
    shift.write_text(str(86400))
    client.wait_for(10)
    shift.write_text(str(-86400))
    server.kill_both()

    assert_same(client.result(), undisturbed)
