"""Commands that ask a server, against real routes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, Retention
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.engine.config import StorageRules
from support.cli.loopback import Loopback, serve_on_loopback


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Loopback]:
    with serve_on_loopback(tmp_path / "home", rules=StorageRules(trash_seconds=3600)) as loopback:
        yield loopback


def fill(loopback: Loopback, *names: str, kind: str = "weights", **facts: object) -> tuple[str, list[str]]:
    """A run, and the paths of what was saved of it."""
    user = loopback.user()
    run_id = loopback.wait(user.run())
    return run_id, [loopback.wait(user.save(run_id, name, kind=kind, **facts)) for name in names]


def flip(path: Path) -> None:
    """A bit of the last tensor."""
    with Archive(open_file(path)) as archive:
        member = list(archive.members.values())[-1]
    content = bytearray(path.read_bytes())
    content[member.offset + member.size - 1] ^= 1
    path.unlink()
    path.write_bytes(content)


def paths_listed(loopback: Loopback) -> set[str]:
    return {entry["tinker_path"] for entry in loopback.json("checkpoints", "ls")["checkpoints"]}


def test_runs_are_listed_and_shown(asked: Loopback) -> None:
    run_id, [path] = fill(asked, "one", user_metadata={"note": "\x1b[31m"})

    listed, shown = asked.run("runs", "ls"), asked.run("runs", "show", run_id)

    assert re.search(rf"^{run_id} +tiny +LoRA 4 +\d+ s ago +active +weights/one$", listed.stdout, re.MULTILINE)
    assert re.search(r"^state +active$", shown.stdout, re.MULTILINE)
    assert re.search(r"^saved +1 checkpoint, [\d.]+ k?B$", shown.stdout, re.MULTILINE)
    assert path in shown.stdout
    assert asked.json("runs", "show", run_id)["checkpoints"][0]["tinker_path"] == path
    assert (asked.run("runs", "show", "nope").exit_code, asked.run("runs", "show", "a b").exit_code) == (1, 2)


def test_recoveries_are_told_newest_first_with_what_may_differ(asked: Loopback) -> None:
    run_id = asked.wait(asked.user().run())
    nothing = asked.run("runs", "recoveries", run_id)
    catalog, at = asked.served.engine.catalog, datetime.now(UTC)
    facts = {"run_id": run_id, "owner": "local", "at": at, "reason": "the worker died: signal 9"}
    skipped = [{"archive": "a/recovery/9.x", "reason": "bad\x1b[31m digest"}]
    asked.wait(catalog.recoveries.add(**facts, replayed=3, matched=3, seconds=1.25))
    asked.wait(
        catalog.recoveries.add(
            **facts,
            archive="a/recovery/0000000000000070.x",
            replayed=4,
            redone=1,
            matched=3,
            mismatched=1,
            skipped=skipped,
            notes=["another device"],
        )
    )

    told, document = asked.run("runs", "recoveries", run_id), asked.json("runs", "recoveries", run_id)

    assert (nothing.exit_code, "was never brought back" in nothing.stdout) == (0, True)
    lines = told.stdout.splitlines()
    assert re.match(
        r" *\d+ s ago  the worker died: signal 9  archive 70 +4 +1 +0.00 s  1 of 4 results differ$", lines[1]
    )
    assert re.match(r" *\d+ s ago  the worker died: signal 9  its beginning +3 +0 +1.25 s  the same$", lines[2])
    assert lines[3].endswith("Z: passed over a/recovery/9.x: bad\\x1b[31m digest")
    assert lines[4].endswith("Z: another device")
    assert [each["replayed"] for each in document["recoveries"]] == [4, 3]
    assert (document["training_run_id"], document["recoveries"][0]["skipped"]) == (run_id, skipped)
    assert asked.run("runs", "recoveries", "nope").exit_code == 1


def test_ls_shows_all_of_mine_or_of_a_run_or_kind(asked: Loopback) -> None:
    first, [one, two] = fill(asked, "one", "two", user_metadata={"loss": "1.5"})
    _, [three] = fill(asked, "three", kind="sampler_weights")

    everything = asked.run("checkpoints", "ls")

    assert everything.exit_code == 0
    lines = everything.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["PATH", three, two, one, "3"]
    assert re.search(r" kB +\d+ s +loss=1.5 +good$", lines[2])
    for words in (["--run", first], [f"tinker://{first}"]):
        document = asked.json("checkpoints", "ls", *words)
        assert {entry["tinker_path"] for entry in document["checkpoints"]} == {one, two}
        assert document["total_bytes"] == sum(entry["size_bytes"] for entry in document["checkpoints"])
    assert asked.json("checkpoints", "ls", "--kind", "sampler_weights")["checkpoints"][0]["tinker_path"] == three


def test_ls_pages_through_all(asked: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.cli.remote.client.PAGE", 2)
    _, paths = fill(asked, *"abcde")

    assert paths_listed(asked) == set(paths)


def test_show_tells_the_facts_and_what_latest_means(asked: Loopback) -> None:
    run_id, [one, two] = fill(asked, "one", "two", user_metadata={"loss": "1.5"})

    shown = asked.run("checkpoints", "show", one).stdout
    latest = asked.json("checkpoints", "show", f"tinker://{run_id}/weights/latest")

    assert re.search(r"^metadata +loss=1.5$", shown, re.MULTILINE)
    assert re.search(r"^expires +never$", shown, re.MULTILINE)
    assert re.search(r"^trained +LoRA of rank 4", shown, re.MULTILINE)
    assert latest["tinker_path"] == two
    missing = asked.run("checkpoints", "show", f"tinker://{run_id}/weights/three")
    assert (missing.exit_code, "weights/three" in missing.stderr) == (1, True)


def test_verify_has_the_server_read_and_the_damage_is_listed(asked: Loopback) -> None:
    run_id, [good, bad] = fill(asked, "good", "bad")
    flip(asked.archive(bad))

    first = asked.run("checkpoints", "verify", good)
    both = asked.run("checkpoints", "verify", "--run", run_id)

    assert (first.exit_code, first.stdout) == (0, f"{good}: good\n")
    assert both.exit_code == 1
    assert re.search(rf"^{bad}: damaged: ", both.stdout, re.MULTILINE)
    assert "2 checkpoints: 1 good, 1 not" in both.stdout
    assert re.search(rf"^{bad} .* damaged: ", asked.run("checkpoints", "ls").stdout, re.MULTILINE)
    assert asked.run("checkpoints", "show", bad).exit_code == 1
    gone = asked.json("checkpoints", "verify", f"tinker://{run_id}/weights/gone")
    assert [entry["state"] for entry in gone["checkpoints"]] == ["missing"]


def test_rm_removes_what_is_named_and_reports_what_is_not(asked: Loopback) -> None:
    run_id, paths = fill(asked, *"12345")

    dry = asked.run("checkpoints", "rm", paths[1], paths[3], "--dry-run")
    unasked = asked.run("checkpoints", "rm", paths[1])
    before = paths_listed(asked)
    done = asked.run("checkpoints", "rm", paths[1], paths[3], f"tinker://{run_id}/weights/6", "-y")

    assert (dry.exit_code, unasked.exit_code, done.exit_code) == (0, 2, 1)
    assert f"would remove {paths[1]}, " in dry.stdout
    assert "pass --yes" in unasked.stderr
    assert before == set(paths)
    assert f"removed {paths[3]}, " in done.stdout
    assert "weights/6' is not yours or not there" in done.stderr
    assert paths_listed(asked) == {paths[0], paths[2], paths[4]}


def test_rm_removes_what_is_chosen(asked: Loopback) -> None:
    run_id, paths = fill(asked, "a", "b")
    _, others = fill(asked, "c")
    [kept] = [asked.wait(asked.user().save(run_id, "s", kind="sampler_weights", seq_id=100))]

    young = asked.json("checkpoints", "rm", "--older-than", "1h", "-y")
    done = asked.json("checkpoints", "rm", "--run", run_id, "--kind", "weights", "--older-than", "0.001s", "-y")

    assert young["removed"] == []
    assert {entry["tinker_path"] for entry in done["removed"]} == set(paths)
    assert paths_listed(asked) == {kept, *others}


def test_sharing_and_lifetimes(asked: Loopback) -> None:
    _, [path] = fill(asked, "one")

    asked.run("checkpoints", "publish", path)
    assert asked.json("checkpoints", "show", path)["public"]
    asked.run("checkpoints", "unpublish", path)
    assert not asked.json("checkpoints", "show", path)["public"]
    assert asked.json("checkpoints", "ttl", path, "7d")["expires_at"] is not None
    assert asked.run("checkpoints", "ttl", path, "none").stdout == f"{path} never expires\n"
    short = asked.run("checkpoints", "ttl", path, "5s")
    copy = asked.run("checkpoints", "copy", path).stdout.strip()

    assert (short.exit_code, "3600" in short.stderr) == (2, True)
    assert copy != path
    assert paths_listed(asked) == {path, copy}


def test_the_trash_is_listed_undeleted_from_and_emptied(asked: Loopback) -> None:
    run_id, [one, two] = fill(asked, "one", "two")
    asked.run("checkpoints", "rm", one, two, "-y")

    listed = asked.run("checkpoints", "trash")
    undeleted = asked.run("checkpoints", "undelete", one)
    entry = asked.json("checkpoints", "trash")["entries"][0]
    renamed = asked.json("checkpoints", "undelete", entry["trash_id"], "--as", "again")

    assert re.search(rf"^ +\d+ +{two} +[\d.]+ kB +\d+ s ago +\d+ min +deleted", listed.stdout, re.MULTILINE)
    assert undeleted.stdout == f"undeleted {one}\nno rule of retention removes it again for 1h\n"
    assert (renamed["was"], renamed["tinker_path"]) == (two, f"tinker://{run_id}/weights/again")
    assert asked.run("checkpoints", "undelete", one).exit_code == 1
    assert asked.run("checkpoints", "undelete", "nonsense").exit_code == 2
    asked.run("checkpoints", "rm", one, "-y")
    dry = asked.run("checkpoints", "trash", "empty", "--dry-run")
    assert (f"would remove {one}" in dry.stdout, len(asked.json("checkpoints", "trash")["entries"])) == (True, 1)
    assert asked.run("checkpoints", "trash", "empty").exit_code == 2
    assert asked.json("checkpoints", "trash", "empty", "-y")["freed_bytes"] > 0
    assert asked.run("checkpoints", "trash").stdout == "the trash is empty\n"


def test_policies_are_set_shown_applied_and_removed(asked: Loopback) -> None:
    run_id, paths = fill(asked, *"1234")

    words = ["--keep-last", "1", "--keep-best", "loss:min:2", "--ttl", "2w", "--pin", "2", "--quota", "5GB"]
    set_ = asked.run("checkpoints", "policy", "set", "--run", run_id, *words)
    shown = asked.run("checkpoints", "policy", "show")
    dry = asked.run("checkpoints", "gc", "--dry-run")
    before = paths_listed(asked)
    done = asked.json("checkpoints", "gc", "--run", run_id)

    spelled = "--keep-last 1 --keep-best loss:min:2 --ttl 14d --pin 2 --quota 5GB"
    assert set_.stdout.splitlines()[0] == f"run:{run_id}: {spelled}"
    assert re.search(rf"^run:{run_id} +{spelled} +local$", shown.stdout, re.MULTILINE)
    assert re.search(r"^\(default\) +keep everything +as the server was started$", shown.stdout, re.MULTILINE)
    assert re.search(rf"^would remove +{paths[0]} +[\d.]+ kB +\S", dry.stdout, re.MULTILINE)
    assert before == set(paths)
    assert {entry["tinker_path"] for entry in done["removed"]} == {paths[0], paths[2]}
    assert paths_listed(asked) == {paths[1], paths[3]}
    assert asked.run("checkpoints", "policy", "remove", "--run", run_id).exit_code == 0
    assert asked.run("checkpoints", "policy", "remove", "--run", run_id).exit_code == 1


def test_a_policy_is_seen_before_it_is_set(asked: Loopback) -> None:
    run_id, paths = fill(asked, *"1234")
    words = ["--run", run_id, "--keep-last", "1"]

    dry = asked.run("checkpoints", "policy", "set", *words, "--dry-run")
    same = asked.run("checkpoints", "gc", *words, "--dry-run")
    mine = asked.json("checkpoints", "gc", "--keep-last", "3", "--dry-run")

    assert dry.exit_code == 0
    for path in paths[:3]:
        assert re.search(rf"^would remove +{path} +[\d.]+ kB +\S", dry.stdout, re.MULTILINE)
    assert "would remove 3 checkpoints, " in dry.stdout
    assert dry.stdout.endswith("nothing was changed: the policies are as they were\n")
    assert same.stdout == dry.stdout
    assert [entry["tinker_path"] for entry in mine["removed"]] == paths[:1]
    assert asked.json("checkpoints", "policy", "show")["policies"] == []
    assert paths_listed(asked) == set(paths)

    set_ = asked.run("checkpoints", "policy", "set", *words)
    unset = asked.run("checkpoints", "policy", "remove", "--run", run_id, "--dry-run")
    asked.run("checkpoints", "gc")

    assert re.search(r"^the next sweep removes 3 checkpoints, [\d.]+ kB; ", set_.stdout, re.MULTILINE)
    assert "would remove 0 checkpoints" in unset.stdout
    assert paths_listed(asked) == set(paths[3:])
    again = asked.run("checkpoints", "policy", "set", *words)
    assert "the next sweep removes none of its checkpoints" in again.stdout


def test_rules_and_quotas_of_the_start_are_shown(tmp_path: Path) -> None:
    rules = StorageRules(Retention(keep_last=9, ttl_seconds=3600), user_quota_bytes=10**9, run_quota_bytes=10**8)
    with serve_on_loopback(tmp_path / "home", rules=rules) as asked:
        shown = asked.run("checkpoints", "policy", "show").stdout

    options = "--keep-last 9 --checkpoint-ttl 1h --user-quota 1GB --run-quota 100MB"
    assert re.search(rf"^\(default\) +{options} +as the server was started$", shown, re.MULTILINE)


def test_rm_of_everything_takes_a_word_and_names_what_is_published(
    asked: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, paths = fill(asked, "a", "b")
    _, others = fill(asked, "c")
    asked.run("checkpoints", "publish", paths[1])
    asked_for: list[str] = []

    def decline(lines: Iterable[str], question: str) -> bool:
        asked_for.extend([*lines, question])
        return False

    monkeypatch.setattr("chockstone.cli.remote.removal.is_confirmed", decline)
    declined = asked.run("checkpoints", "rm", "--all")
    before = paths_listed(asked)
    done = asked.json("checkpoints", "rm", "--all", "--kind", "weights", "-y")

    assert (declined.exit_code, before) == (0, {*paths, *others})
    assert [line for line in asked_for[:-1] if "published" in line] == [line for line in asked_for if paths[1] in line][
        :1
    ]
    assert re.fullmatch(rf"Remove 3 checkpoints, [\d.]+ kB, 1 of them published: {paths[1]}\?", asked_for[-1])
    assert {entry["tinker_path"] for entry in done["removed"]} == {*paths, *others}


def test_rm_of_what_another_published_says_that_it_is_not_yours(tmp_path: Path) -> None:
    with serve_on_loopback(tmp_path / "home", keys={"local": "tml-local", "bob": "tml-of-bob"}) as asked:
        run_id, [path] = fill(asked, "one")
        asked.run("checkpoints", "publish", path)

        results = [asked.run("checkpoints", "rm", path, *more, key="tml-of-bob") for more in (["-y"], ["--dry-run"])]
        of_run = asked.run("checkpoints", "rm", "--run", run_id, "-y", key="tml-of-bob")

        assert paths_listed(asked) == {path}
    for result in results:
        assert result.exit_code == 1
        assert "remove 1" not in result.stdout and "removed 1" not in result.stdout
        assert f"{path!r} is not yours: another user published it" in result.stderr
    assert (of_run.exit_code, "`chockstone runs ls` shows yours" in of_run.stderr) == (1, True)


def test_diff_of_a_servers_checkpoints(asked: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    _, [one] = fill(asked, "one")
    copy = asked.run("checkpoints", "copy", one).stdout.strip()
    asked.run("checkpoints", "download", one, tmp_path / "one.tar")

    same = asked.run("checkpoints", "diff", one, copy)
    mixed = asked.json("checkpoints", "diff", tmp_path / "one.tar", one)
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save({"w": np.zeros(3)}, name="other")
    other = asked.run("checkpoints", "diff", one, tmp_path / "store/other.tar")

    assert same.exit_code == 0
    assert f"--- {one}  " in same.stdout and f"+++ {copy}  " in same.stdout
    assert (mixed["same"], mixed["after"]["name"]) == (True, one)
    assert (other.exit_code, "added" in other.stdout) == (1, True)
    assert asked.run("checkpoints", "diff", one, one.replace("/one", "/none")).exit_code == 1
    assert os.listdir(tmp_path / "temporary") == []


def test_an_interrupted_download_says_what_stays_and_goes_on(
    asked: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, [path] = fill(asked, "one")

    def interrupt(_url: str, _offer: object, file: IO[bytes], _on_bytes: object) -> None:
        file.write(asked.archive(path).read_bytes()[:5000])
        file.flush()
        raise KeyboardInterrupt

    for words in (["download", path, tmp_path / "one.tar"], ["export", path, tmp_path / "out"]):
        with monkeypatch.context() as patch:
            patch.setattr("chockstone.cli.remote.download._take", interrupt)
            stopped = asked.run("checkpoints", *words)

        assert stopped.exit_code == 130
        assert re.search(
            r"interrupted: 5.0 kB have arrived and stay in '.*\.part'; the same command goes on from there",
            stopped.stderr,
        )
        assert asked.run("checkpoints", *words).exit_code == 0
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []


def test_a_server_without_trash_says_so(tmp_path: Path) -> None:
    with serve_on_loopback(tmp_path / "home", rules=StorageRules()) as asked:
        _, [path] = fill(asked, "one")
        asked.run("checkpoints", "rm", path, "-y")

        listed = asked.run("checkpoints", "trash")
        emptied = asked.run("checkpoints", "trash", "empty", "-y")
        undeleted = [asked.run("checkpoints", "undelete", word) for word in (path, "1")]

    for text in (listed.stdout, emptied.stdout, *(result.stderr for result in undeleted)):
        assert "this server keeps no trash: what is removed from it is gone. `chockstone serve --trash 7d`" in text
    assert [result.exit_code for result in undeleted] == [1, 1]


def test_what_a_live_sampler_uses_stays_in_the_trash_and_is_named(asked: Loopback) -> None:
    run_id, [used, unused] = fill(asked, "used", "unused", kind="sampler_weights")
    sampling = {"session_id": run_id.partition(":")[0], "sampling_session_seq_id": 0, "model_path": used}
    assert asked.wait(asked.user().http.post("create_sampling_session", json=sampling)).status_code == 200
    asked.run("checkpoints", "rm", used, unused, "-y")

    dry = asked.run("checkpoints", "trash", "empty", "--dry-run")
    done = asked.run("checkpoints", "trash", "empty", "-y")

    assert f"would stay {used}: a live sampler uses it, until it ends" in dry.stdout
    assert f"would remove {used}" not in dry.stdout
    assert f"stays {used}: a live sampler uses it, until it ends" in done.stdout
    assert unused not in done.stdout
    assert [entry["tinker_path"] for entry in asked.json("checkpoints", "trash")["entries"]] == [used]


def test_restore_under_a_taken_name_says_how_to_have_another(asked: Loopback) -> None:
    run_id, [path] = fill(asked, "one")
    asked.wait(asked.user().save(run_id, "one", overwrite=True, seq_id=100))

    taken = asked.run("checkpoints", "undelete", path)
    renamed = asked.run("checkpoints", "undelete", path, "--as", "older")

    assert (taken.exit_code, "restore under another name, with --as NAME" in taken.stderr) == (2, True)
    assert renamed.stdout.splitlines()[0] == f"undeleted {path} as tinker://{run_id}/weights/older"


def test_the_newest_checkpoint_of_a_run_may_be_of_any_kind(asked: Loopback) -> None:
    run_id, _ = fill(asked, "one")
    asked.wait(asked.user().save(run_id, "out", kind="external_weights", seq_id=100))

    assert asked.run("runs", "ls").stdout.rstrip().endswith("external_weights/out")


def test_storage_draws_who_uses_how_much(tmp_path: Path) -> None:
    rules = StorageRules(user_quota_bytes=10**9, trash_seconds=60.0, retention=Retention(keep_last=9))
    with serve_on_loopback(tmp_path / "home", rules=rules) as asked:
        run_id, [one, _] = fill(asked, "one", "two")
        asked.run("checkpoints", "rm", one, "-y")

        shown, document = asked.run("storage").stdout, asked.json("storage")

    assert re.search(r"^[\d.]+ kB in 1 checkpoint$", shown, re.MULTILINE)
    assert re.search(r"^quota  1.0 GB, 1.0 GB left$", shown, re.MULTILINE)
    assert re.search(r"^trash  [\d.]+ kB in 1 checkpoint$", shown, re.MULTILINE)
    assert re.search(r"^local  ▏ +[\d.]+ kB of 1.0 GB, 0%, 1 checkpoint$", shown, re.MULTILINE)
    assert re.search(rf"^{run_id} tiny  █+  +[\d.]+ kB, 1 checkpoint$", shown, re.MULTILINE)
    assert document["runs"][0]["run_id"] == run_id


def test_download_and_export_bring_the_archive_verified(asked: Loopback, tmp_path: Path) -> None:
    _, [path] = fill(asked, "one", kind="sampler_weights")
    stored = asked.archive(path).read_bytes()

    downloaded = asked.run("checkpoints", "download", path, tmp_path / "one.tar")
    again = asked.run("checkpoints", "download", path, tmp_path / "one.tar")
    exported = asked.json("checkpoints", "export", path, tmp_path / "out")

    assert downloaded.exit_code == 0
    assert (tmp_path / "one.tar").read_bytes() == stored
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    assert {member["name"] for member in exported["members"]} == {
        file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*") if file.is_file()
    }
    assert asked.run("checkpoints", "show", tmp_path / "one.tar").exit_code == 0
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_what_arrives_damaged_gets_no_name(asked: Loopback, tmp_path: Path) -> None:
    _, [path] = fill(asked, "one")
    flip(asked.archive(path))

    result = asked.run("checkpoints", "download", path, tmp_path / "one.tar")

    assert result.exit_code == 1
    assert "is not what was written" in result.stderr
    assert [name for name in os.listdir(tmp_path) if "one.tar" in name] == []
    asked.run("checkpoints", "verify", path)
    known = asked.run("checkpoints", "export", path, tmp_path / "out")
    assert (known.exit_code, "is damaged" in known.stderr) == (1, True)


def test_another_user_and_a_wrong_key(tmp_path: Path) -> None:
    with serve_on_loopback(tmp_path / "home", keys={"local": "tml-local", "bob": "tml-of-bob"}) as asked:
        _, [path] = fill(asked, "one")

        assert asked.json("checkpoints", "ls", key="tml-of-bob")["checkpoints"] == []
        foreign = asked.run("checkpoints", "rm", path, "-y", key="tml-of-bob")
        wrong = asked.run("checkpoints", "ls", key="tml-wrong")
        forbidden = asked.run("checkpoints", "policy", "set", "--global", "--keep-last", "1", key="tml-of-bob")
        asked.run("checkpoints", "publish", path)
        shared = asked.json("checkpoints", "show", path, key="tml-of-bob")

    assert (foreign.exit_code, wrong.exit_code, forbidden.exit_code) == (1, 3, 3)
    assert "key is not known" in wrong.stderr
    assert "only admins" in forbidden.stderr
    assert shared["tinker_path"] == path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ls", "--prefix", "x"], "--prefix belongs to a store"),
        (["ls", ".", "--run", "x"], "belongs to a server"),
        (["ls", "tinker://a", "--run", "b"], "given twice"),
        (["show", "tinker://a/b"], "is not a checkpoint"),
        (["show", "tinker://a/weights/c", "d"], "names one checkpoint"),
        (["rm"], "say which"),
        (["rm", "tinker://a/weights/b", "--run", "a"], "choose among all"),
        (["rm", "tinker://a/weights/b", "x"], "is not a checkpoint"),
        (["rm", ".", "x", "--run", "a"], "belong to a server"),
        (["rm", "."], "name the checkpoints"),
        (["rm", "--older-than", "7x"], "not a duration"),
        (["rm", "--kind", "weights"], "--all takes what all your runs have"),
        (["rm", "tinker://a/weights/b", "--all"], "choose among all"),
        (["gc", "--keep-last", "3"], "`policy set` sets them, and with --dry-run this shows"),
        (["gc", "--sweep-partials"], "are for a store"),
        (["gc", "--keep-best", "loss:sideways", "--dry-run"], "does not say whether the least or the most"),
        (["policy", "set", "--mine", "--keep-best", "loss:3"], "does not say whether the least or the most"),
        (["diff", "tinker://a/weights/b", "tinker://a/weights/c", "d"], "is too much"),
        (["verify", "./a.tar", "tinker://a/weights/c"], "is a server's, where a store or a file is wanted"),
        (["show", "nowhere"], "there is no archive file 'nowhere'"),
        (["gc", ".", "--run", "a"], "belongs to a server"),
        (["export", "tinker://a/weights/b", "c", "--merge"], "needed together"),
        (["export", "tinker://a/weights/b", "c", "d"], "is too much"),
        (["policy", "set", "--keep-last", "1"], "say whose policy"),
        (["policy", "set", "--global"], "name a rule"),
        (["policy", "remove", "--global", "--user", "x"], "one of them"),
        (["ttl", "tinker://a/weights/b", "soon"], "not a duration"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    loopback = Loopback("http://127.0.0.1:9", Path(), None, None)  # type: ignore[arg-type]  # nothing is served

    result = loopback.run("checkpoints", *words)

    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())


def test_no_server_is_told_with_what_to_start(tmp_path: Path) -> None:
    loopback = Loopback("http://127.0.0.1:9", Path(), None, None)  # type: ignore[arg-type]  # nothing is served

    for words in (["runs", "ls"], ["checkpoints", "ls"], ["storage"]):
        result = loopback.run(*words)
        assert result.exit_code == 3
        assert "no server answers at http://127.0.0.1:9: " in result.stderr
        assert "`chockstone serve`" in result.stderr
    document = json.loads(loopback.run("runs", "ls", "--json").stdout)
    assert document["error"]["kind"] == "ServerUnreachable"


@pytest.mark.parametrize(
    "words",
    [
        *(["runs", name] for name in ("ls", "show", "recoveries")),
        *(["keys", name] for name in ("create", "ls", "revoke")),
        *(["checkpoints", name] for name in ("download", "publish", "unpublish", "ttl", "copy", "undelete", "trash")),
        ["checkpoints", "trash", "empty"],
        *(["checkpoints", "policy", name] for name in ("show", "set", "remove")),
        ["storage"],
    ],
    ids=" ".join,
)
def test_help_teaches_by_example_and_names_the_exit_codes(words: list[str]) -> None:
    result = Loopback("http://127.0.0.1:9", Path(), None, None).run(*words, "--help")  # type: ignore[arg-type]  # no server

    assert result.exit_code == 0
    assert re.search(rf"^    chockstone {' '.join(words)}\b", result.stdout, re.MULTILINE)
    assert "Exit codes: 0 fine" in result.stdout
    assert "--json" in result.stdout
