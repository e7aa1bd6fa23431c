from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from support.cli.loopback import Loopback
from support.cli.remote_commands import fill, flip


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
            r"interrupted: 5.0 kB are kept in '.*\.part'; the same command resumes the download",
            stopped.stderr,
        )
        assert asked.run("checkpoints", *words).exit_code == 0
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []


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
