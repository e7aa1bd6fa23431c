"""A checkpoint resumes along the chain of attempts, through the calls that flytekit has."""

from __future__ import annotations

import errno
import gc
import io
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flytekit.exceptions.user import FlyteDataNotFoundException, FlyteRecoverableException

from chockstone.checkpoints.errors import CheckpointError, ResumeBlocked, ResumeExhausted, Superseded
from chockstone.integrations.flyte import FlyteCheckpoint, FreshStart, Options
from support.integrations.flyte_attempts import Root, flyte_native
from support.loopback_s3 import Fault, Kind, Proxy


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def restored(checkpoint: FlyteCheckpoint) -> dict[str, bytes]:
    path = checkpoint.restore()
    assert path is not None
    return tree(path)


def archives(root: Root, attempt: int) -> list[Path]:
    return sorted(Path(root.path(attempt) + ".ckpt").glob("*.tar"))


class TestChain:
    def test_F01_F02_attempts_that_wrote_nothing_are_walked_past(self, root: Root) -> None:
        root.attempt(0).write(b"3")
        root.attempt(2)  # never touches the store

        checkpoint = root.attempt(3)

        assert checkpoint.prev_exists()
        assert checkpoint.read() == b"3"
        assert checkpoint.report is not None
        assert checkpoint.report.choice is not None
        assert checkpoint.report.choice.attempt == 0
        assert [(each.attempt, each.verdict) for each in checkpoint.report.looked] == [
            (3, "absent"), (2, "absent"), (1, "absent"), (0, "verified"),
        ]  # fmt: skip

    def test_attempts_that_only_looked_are_walked_past(self, root: Root) -> None:
        root.attempt(0).write(b"3")
        for number in (1, 2):
            assert root.attempt(number, forward="off").read() == b"3"

        assert root.attempt(3).read() == b"3"

    def test_a_forward_brings_the_next_attempt_there_in_one_step(self, root: Root) -> None:
        root.attempt(0).write(b"3")
        first = root.attempt(1)
        assert first.read() == b"3"
        first.close()

        second = root.attempt(2)

        assert second.read() == b"3"
        assert second.report is not None and second.report.choice is not None
        assert second.report.choice.attempt == 1

    def test_F04_a_previous_path_that_is_the_current_one(self, root: Root) -> None:
        root.attempt(1).write(b"1")

        assert root.attempt(2, prev=2).read() == b"1"

    def test_F05_an_empty_previous_path_on_a_retry(self, root: Root) -> None:
        root.attempt(1).write(b"1")

        assert root.attempt(2, prev=None).read() == b"1"
        assert root.attempt(3, prev="").read() == b"1"

    def test_F03_an_unknown_layout_goes_by_the_platform_and_by_lineage(self, root: Root) -> None:
        paths = [f"{root.uri}/somewhere/{number}/checkpoint" for number in range(4)]
        FlyteCheckpoint(paths[0]).write(b"0")
        for number in (1, 2):
            FlyteCheckpoint(paths[number], paths[number - 1], options=Options(forward="off")).prev_exists()

        checkpoint = FlyteCheckpoint(paths[3], paths[2])

        assert checkpoint.read() == b"0"
        assert checkpoint.report is not None
        assert "derived" in checkpoint.report.notes[0]

    def test_F09_a_restart_in_place_goes_on_from_its_own(self, root: Root) -> None:
        root.attempt(0).write(b"old")
        root.attempt(1).write(b"own")

        assert root.attempt(1).read() == b"own"

    def test_F09_a_first_attempt_that_is_restarted_has_no_previous_path_and_goes_on(self, root: Root) -> None:
        root.attempt(0).write(b"own")

        again = root.attempt(0)

        assert again.prev_exists()
        assert again.read() == b"own"

    def test_F10_a_recovered_execution_is_found_again_through_lineage(
        self, root: Root, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = root.path(4, stem="recovered-n0")
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "recovered")
        FlyteCheckpoint(old).write(b"old")
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "feda4e266c748463a97d")
        assert root.attempt(0, prev=old, forward="off").prev_exists()  # and dies

        assert root.attempt(1).read() == b"old"

    def test_F10_also_when_the_recovered_one_was_forwarded(self, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        old = root.path(4, stem="recovered-n0")
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "recovered")
        FlyteCheckpoint(old).write(b"old")
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "feda4e266c748463a97d")
        first = root.attempt(0, prev=old)
        assert first.read() == b"old"
        first.close()

        assert root.attempt(1).read() == b"old"

    def test_F36_what_another_task_left_at_our_path_is_not_ours(
        self, root: Root, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_PROJECT", "theirs")
        root.attempt(0).write(b"foreign")
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_PROJECT", "ours")

        with pytest.raises(FreshStart):
            root.attempt(1).read()

    def test_F32_a_zombie_is_told_to_stop_and_is_not_gone_back_to(self, root: Root) -> None:
        zombie = root.attempt(1)
        zombie.write(b"100")
        living = root.attempt(2)
        assert living.read() == b"100"
        living.write(b"120")

        with pytest.raises(Superseded):
            zombie.write(b"200")

        assert root.attempt(3).read() == b"120"

    def test_a_source_may_be_a_list_the_most_recent_first(self, root: Root) -> None:
        places = [f"{root.uri}/by/hand/{number}" for number in range(4)]
        for number in (0, 1):
            FlyteCheckpoint(places[number]).write(str(number).encode())

        checkpoint = FlyteCheckpoint(f"{root.uri}/now", [places[3], places[2], places[1], places[0]])

        assert checkpoint._checkpoint_src == places[3]
        assert checkpoint.read() == b"1"

    def test_sources_of_the_user_come_last(self, root: Root) -> None:
        other = f"{root.uri}/another/run"
        FlyteCheckpoint(other).write(b"other")

        assert root.attempt(0, sources=(other,)).read() == b"other"
        assert root.attempt(0, sources=other).read() == b"other"


class TestFreshStart:
    def test_nothing_was_ever_committed(self, root: Root) -> None:
        root.attempt(0).prev_exists()  # claims, and dies
        checkpoint = root.attempt(1)

        assert not checkpoint.prev_exists()
        for ask in (checkpoint.restore, checkpoint.read, checkpoint.restore):
            with pytest.raises(FlyteDataNotFoundException, match="nothing was ever committed"):
                ask()

        checkpoint.write(b"1")  # a fresh start blocks nothing
        assert root.attempt(2).read() == b"1"

    def test_it_can_be_asked_for(self, root: Root) -> None:
        root.attempt(0).write(b"1")

        assert not root.attempt(1, fresh_start=True).prev_exists()


class TestSaving:
    def test_F12_saves_of_an_attempt_add_up_for_the_next(self, root: Root, tmp_path: Path) -> None:
        first = root.attempt(0)
        for name, content in {"config": b"c", "model": b"old", "deep/er/log": b"l"}.items():
            (tmp_path / "state" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "state" / name).write_bytes(content)
        first.save(tmp_path / "state")
        (tmp_path / "model").write_bytes(b"new")
        first.save(tmp_path / "model", step=2)

        assert restored(root.attempt(1)) == {"config": b"c", "model": b"new", "deep/er/log": b"l"}

    def test_a_restarted_process_adds_to_what_its_attempt_had(self, root: Root, tmp_path: Path) -> None:
        (tmp_path / "one").write_bytes(b"1")
        (tmp_path / "two").write_bytes(b"2")
        root.attempt(0).save(tmp_path / "one")
        root.attempt(0).save(tmp_path / "two")

        assert restored(root.attempt(1)) == {"one": b"1", "two": b"2"}

    def test_what_was_restored_is_not_part_of_what_is_saved(self, root: Root, tmp_path: Path) -> None:
        (tmp_path / "one").write_bytes(b"1")
        (tmp_path / "two").write_bytes(b"2")
        root.attempt(0).save(tmp_path / "one")
        second = root.attempt(1)
        second.restore()
        second.close()
        second.save(tmp_path / "two")

        assert restored(root.attempt(2)) == {"two": b"2"}

    def test_replace_leaves_nothing_of_before(self, root: Root, tmp_path: Path) -> None:
        (tmp_path / "one").write_bytes(b"1")
        (tmp_path / "two").write_bytes(b"2")
        first = root.attempt(0)
        first.save(tmp_path / "one")
        first.save(tmp_path / "two", replace=True)

        assert restored(root.attempt(1)) == {"two": b"2"}
        if not root.uri.startswith("s3"):
            assert tree(Path(root.path(0))) == {"two": b"2"}

    def test_a_reader_bytes_and_an_open_file(self, root: Root, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"xfile")
        for number, thing in enumerate([b"bytes", io.BytesIO(b"reader"), (tmp_path / "file").open("rb")]):
            with thing if isinstance(thing, io.IOBase) else io.BytesIO():
                if isinstance(thing, io.BufferedReader):
                    thing.read(1)  # saved from where it stands
                root.attempt(number).save(thing)

            assert root.attempt(number + 1).read() == [b"bytes", b"reader", b"file"][number]

    def test_what_a_link_points_to_is_saved(self, root: Root, tmp_path: Path) -> None:
        (tmp_path / "model-7").write_bytes(b"7")
        (tmp_path / "latest").symlink_to("model-7")

        root.attempt(0).save(tmp_path / "latest")

        assert restored(root.attempt(1)) == {"latest": b"7"}

    def test_an_empty_folder_saves_nothing(self, root: Root, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        root.attempt(0).write(b"0")

        root.attempt(1).save(tmp_path / "empty")

        assert root.attempt(2).read() == b"0"

    def test_a_file_that_is_not_there_is_an_error_and_commits_nothing(self, root: Root, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="nowhere"):
            root.attempt(0).save(tmp_path / "nowhere")

        with pytest.raises(FreshStart):
            root.attempt(1).read()

    def test_as_many_as_are_asked_for_stay_and_what_they_need(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        (tmp_path / "config").write_bytes(b"c")
        checkpoint = root.attempt(0)
        checkpoint.save(tmp_path / "config")
        for step in range(5):
            checkpoint.write(str(step).encode(), step=step)

        assert [path.name for path in archives(root, 0)] == ["000001-0001.tar", "000005-0001.tar", "000006-0001.tar"]
        assert restored(root.attempt(1)) == {"config": b"c", "_dst_cp": b"4"}

    def test_a_file_may_be_saved_from_the_destination_itself(self, tmp_path: Path) -> None:
        (tmp_path / "dest").mkdir()
        (tmp_path / "dest" / "test").write_bytes(b"blah")

        FlyteCheckpoint(tmp_path / "dest").save(tmp_path / "dest" / "test")

        assert tree(tmp_path / "dest") == {"test": b"blah"}

    def test_names_that_cannot_stand_together_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "state" / "model").mkdir(parents=True)
        (tmp_path / "state" / "model" / "part").write_bytes(b"1")
        (tmp_path / "model").write_bytes(b"2")
        checkpoint = Root(str(tmp_path / "raw")).attempt(0)
        checkpoint.save(tmp_path / "state")

        with pytest.raises(CheckpointError, match="replace=True"):
            checkpoint.save(tmp_path / "model")

    def test_restoring_after_a_save_gives_what_was_there_before_it(self, root: Root) -> None:
        root.attempt(0).write(b"0")
        checkpoint = root.attempt(1)
        checkpoint.write(b"1")

        assert checkpoint.read() == b"0"

    def test_a_first_attempt_that_has_saved_restores_nothing(self, root: Root) -> None:
        checkpoint = root.attempt(0)
        checkpoint.write(b"1")

        assert not checkpoint.prev_exists()
        assert checkpoint.restore() is None


class TestFlyteNative:
    def test_F37_flytekit_reads_what_we_saved(self, root: Root) -> None:
        root.attempt(0).write(b"ours")

        assert flyte_native("read", dest=root.path(1), src=root.path(0)) == b"ours"

    def test_F37_we_read_what_flytekit_saved_and_say_so(self, root: Root) -> None:
        flyte_native("write", dest=root.path(0), content=b"native")

        checkpoint = root.attempt(1)

        assert checkpoint.read() == b"native"
        assert checkpoint.report is not None and checkpoint.report.choice is not None
        assert checkpoint.report.choice.verdict == "unverified"
        assert checkpoint.report.warnings

    def test_F37_it_may_be_refused(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        flyte_native("write", dest=root.path(0), content=b"native")

        with pytest.raises(ResumeExhausted):
            root.attempt(1, accept_flyte_native=False).read()

    def test_F37_a_chain_may_go_back_and_forth(self, root: Root) -> None:
        flyte_native("write", dest=root.path(0), content=b"0")
        second = root.attempt(1)
        assert second.read() == b"0"
        second.write(b"1")
        assert flyte_native("read", dest=root.path(2), src=root.path(1)) == b"1"
        flyte_native("write", dest=root.path(2), content=b"2")

        assert root.attempt(3).read() == b"2"

    def test_the_view_can_be_done_without(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        root.attempt(0, flyte_native_view=False).write(b"ours")

        assert root.attempt(1).read() == b"ours"
        with pytest.raises(FlyteDataNotFoundException):
            flyte_native("read", dest=root.path(1), src=root.path(0))


class TestDamage:
    def test_F13_an_older_generation_of_the_same_attempt_comes_first(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        root.attempt(0).write(b"0")
        second = root.attempt(1)
        second.write(b"1")
        second.write(b"2")
        damage(archives(root, 1)[-1])

        assert root.attempt(2).read() == b"1"

    def test_F16_if_all_are_damaged_it_does_not_start_at_zero(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        root.attempt(0).write(b"0")
        damage(archives(root, 0)[0])
        checkpoint = root.attempt(1)

        with pytest.raises(ResumeExhausted) as caught:
            checkpoint.read()

        assert not isinstance(caught.value, FlyteRecoverableException | FlyteDataNotFoundException)
        with pytest.raises(ResumeExhausted):
            checkpoint.write(b"1")

    def test_F14_an_inherited_file_is_verified_where_it_is(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        root.attempt(0).write(b"0")
        (tmp_path / "other").write_bytes(b"1")
        second = root.attempt(1)
        second.write(b"1")
        second.save(tmp_path / "other")  # inherits what was written
        damage(archives(root, 1)[0])

        checkpoint = root.attempt(2)

        assert checkpoint.read() == b"0"
        assert checkpoint.report is not None
        assert [each.verdict for each in checkpoint.report.looked if each.attempt == 1] == ["corrupt", "corrupt"]

    def test_F24_no_file_of_a_failed_candidate_reaches_the_user(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "model").write_bytes(b"0" * 100)
        root.attempt(0).save(tmp_path / "state")
        for name in ("a", "b", "model"):
            (tmp_path / "state" / name).write_bytes(b"1" * 3_000_000)
        root.attempt(1).save(tmp_path / "state")
        damage(archives(root, 1)[0], at=-40_000)
        wanted = tmp_path / "wanted"
        wanted.mkdir()
        (wanted / "notes").write_bytes(b"mine")

        root.attempt(2).restore(wanted)

        assert tree(wanted) == {"notes": b"mine", "model": b"0" * 100}

    @pytest.mark.parametrize(
        ("number", "verdict"),
        [(errno.EACCES, "denied"), (errno.EIO, "unreachable"), (errno.ESTALE, "unreachable")],
        ids=["EACCES", "EIO", "ESTALE"],
    )
    def test_F22_a_directory_that_cannot_be_read_blocks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, verdict: str
    ) -> None:
        root = Root(str(tmp_path / "raw"))
        root.attempt(0).write(b"0")
        root.attempt(1).write(b"1")
        scandir = os.scandir

        def failing(path: str | Path = ".") -> Any:
            if str(path) == root.path(1) + ".ckpt":
                raise OSError(number, os.strerror(number), str(path))
            return scandir(path)

        monkeypatch.setattr("chockstone.checkpoints.resume.attempts.places.os.scandir", failing)

        with pytest.raises(ResumeBlocked) as caught:
            root.attempt(2).read()

        assert caught.value.verdict == verdict
        assert isinstance(caught.value, FlyteRecoverableException) == (verdict == "unreachable")


def damage(path: Path, *, at: int = 0) -> None:
    content = bytearray(path.read_bytes())
    position = at or len(content) // 2
    content[position] ^= 1
    path.write_bytes(content)


DENIED = Fault(Kind.STATUS, 403, "AccessDenied")
BUSY = Fault(Kind.STATUS, 503, "SlowDown")


class TestStoreTrouble:
    def blocked(self, proxied: tuple[Root, Proxy], fault: Fault) -> FlyteCheckpoint:
        root, proxy = proxied
        root.attempt(0).write(b"0")
        root.attempt(1).write(b"1")
        proxy.inject(fault, method="GET", containing="n0-1")
        return root.attempt(2, deadline_seconds=20.0)

    @pytest.mark.parametrize(("fault", "is_recoverable"), [(DENIED, False), (BUSY, True)], ids=["403", "503"])
    def test_F17_F19_F26_what_cannot_be_read_is_not_passed(
        self, proxied: tuple[Root, Proxy], fault: Fault, is_recoverable: bool
    ) -> None:
        checkpoint = self.blocked(proxied, fault)

        with pytest.raises(ResumeBlocked) as first:
            checkpoint.prev_exists()
        with pytest.raises(ResumeBlocked) as second:
            checkpoint.restore()

        assert isinstance(first.value, FlyteRecoverableException) == is_recoverable
        assert first.value.verdict == ("unreachable" if is_recoverable else "denied")
        assert second.value is first.value
        if not is_recoverable:
            assert "s3:ListBucket" in str(first.value)

    def test_F25_after_a_swallowed_error_nothing_is_saved_until_it_is_said_to_be_fine(
        self, proxied: tuple[Root, Proxy]
    ) -> None:
        root, proxy = proxied
        checkpoint = self.blocked(proxied, DENIED)
        try:
            checkpoint.read()
        except Exception:
            proxy.heal()
        with pytest.raises(ResumeBlocked):
            checkpoint.write(b"from zero")
        assert root.attempt(3, forward="off").read() == b"1"

    def test_F25_it_can_be_acknowledged(self, proxied: tuple[Root, Proxy]) -> None:
        root, proxy = proxied
        checkpoint = self.blocked(proxied, DENIED)
        with pytest.raises(ResumeBlocked):
            checkpoint.read()
        proxy.heal()
        checkpoint.acknowledge_fresh_start()
        checkpoint.write(b"from zero")

        assert root.attempt(3).read() == b"from zero"

    def test_a_store_that_is_away_while_saving_is_worth_another_attempt(self, proxied: tuple[Root, Proxy]) -> None:
        root, proxy = proxied
        checkpoint = root.attempt(0)
        checkpoint.write(b"0")
        proxy.inject(BUSY, method="PUT")

        with pytest.raises(FlyteRecoverableException):
            checkpoint.write(b"1")

        proxy.heal()
        assert root.attempt(1).read() == b"0"

    def test_what_cannot_be_read_after_its_commit_is_saved_all_the_same(
        self, proxied: tuple[Root, Proxy], tmp_path: Path
    ) -> None:
        root, proxy = proxied
        (tmp_path / "one").write_bytes(b"1")
        checkpoint = root.attempt(0)
        proxy.inject(DENIED, method="GET", containing=".tar")
        checkpoint.write(b"0")
        with pytest.raises(CheckpointError):
            checkpoint.save(tmp_path / "one")  # cannot tell what it would add to
        proxy.heal()

        checkpoint.save(tmp_path / "one")

        assert restored(root.attempt(1)) == {"_dst_cp": b"0", "one": b"1"}

    def test_a_view_that_cannot_be_refreshed_fails_no_save(self, proxied: tuple[Root, Proxy]) -> None:
        root, proxy = proxied
        checkpoint = root.attempt(0)
        proxy.inject(DENIED, method="PUT", containing="_flytecheckpoints/")

        checkpoint.write(b"0")

        proxy.heal()
        assert root.attempt(1).read() == b"0"

    def test_flytes_own_variables_say_where_s3_is(
        self, proxied: tuple[Root, Proxy], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root, proxy = proxied
        root.attempt(0).write(b"0")
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        current = "chockstone.integrations.flyte.checkpointer.FlyteContextManager.current_context"
        monkeypatch.setattr(current, lambda: flyte_context(proxy.url))

        assert root.attempt(1).read() == b"0"


def flyte_context(endpoint: str) -> object:
    from flytekit.configuration import DataConfig, S3Config
    from flytekit.core.data_persistence import FileAccessProvider

    s3 = S3Config(endpoint=endpoint, access_key_id="flyte-key", secret_access_key="flyte-secret")
    provider = FileAccessProvider("/tmp", "/tmp", data_config=DataConfig(s3=s3))
    return SimpleNamespace(file_access=provider)


class TestObject:
    def test_it_asks_nothing_of_a_store_when_it_is_made(self, s3: str, proxied: tuple[Root, Proxy]) -> None:
        root, proxy = proxied

        root.attempt(3)

        assert proxy.requests == []

    @pytest.mark.parametrize("dest", ["s3://bucket", "s3://bucket/", "/", "ftp://host/path", "s3://b/p?token=secret"])
    def test_a_destination_without_room_beside_it_is_refused_when_it_is_used(self, dest: str) -> None:
        with pytest.raises(CheckpointError) as caught:
            FlyteCheckpoint(dest).write(b"1")

        assert "secret" not in str(caught.value)

    def test_a_half_built_one_goes_quietly(self) -> None:
        half = FlyteCheckpoint.__new__(FlyteCheckpoint)
        del half
        gc.collect()

    def test_F40_threads_get_the_same_directory(self, root: Root) -> None:
        root.attempt(0).write(b"0")
        checkpoint = root.attempt(1)
        found: list[Path | None] = []
        threads = [threading.Thread(target=lambda: found.append(checkpoint.restore())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(found) == 4
        assert len(set(found)) == 1

    def test_private_names_that_plugins_read_are_plain(self, tmp_path: Path) -> None:
        checkpoint = FlyteCheckpoint(checkpoint_dest=tmp_path / "dest", checkpoint_src=tmp_path / "src")

        assert checkpoint._checkpoint_dest == str(tmp_path / "dest")
        assert checkpoint._checkpoint_src == str(tmp_path / "src")

    def test_a_folder_in_the_way_of_a_file_is_our_own_trouble(self, tmp_path: Path) -> None:
        root = Root(str(tmp_path / "raw"))
        root.attempt(0).write(b"0")
        wanted = tmp_path / "wanted"
        (wanted / "_dst_cp").mkdir(parents=True)

        with pytest.raises(ResumeBlocked, match="empty directory") as caught:
            root.attempt(1).restore(wanted)

        assert caught.value.verdict == "local"


class TestRanks:
    def test_other_ranks_restore_and_do_not_save(self, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        root.attempt(0).write(b"0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "0")
        leader = root.attempt(1)
        assert leader.read() == b"0"
        monkeypatch.setenv("RANK", "1")
        other = root.attempt(1)

        assert other.read() == b"0"
        with pytest.raises(CheckpointError, match="rank 0"):
            other.write(b"1")

        monkeypatch.setenv("RANK", "0")
        leader.write(b"1")  # nobody took its place
