from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from chockstone.catalog import Catalog
from chockstone.cli.app import app
from chockstone.engine.ownership.api_keys import digest_of
from support.postgres import shared_postgres


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["keys", *map(str, words)], catch_exceptions=False)


async def active(catalog: Catalog) -> dict[str, str]:
    """The user of each valid key, by its digest."""
    return {key.digest: key.user_id for key in await catalog.keys.list() if not key.is_revoked}


def run_json(*words: str | Path) -> Any:
    return json.loads(run(*words, "--json").stdout)


def test_a_key_is_printed_once_and_only_its_digest_is_kept(tmp_path: Path) -> None:
    made = run("create", "alice", "--note", "laptop", "--data", tmp_path / "new" / "data")

    key = made.stdout.strip()
    assert re.fullmatch(r"tml-[0-9a-f]{48}", key)
    assert "key 1 of alice, printed only this once" in made.stderr
    kept = b"".join(file.read_bytes() for file in (tmp_path / "new/data").iterdir())
    assert key.encode() not in kept
    assert digest_of(key).encode() in kept
    shown = run("ls", "--data", tmp_path / "new/data").stdout
    assert key not in shown
    assert re.search(rf"^ +1 +alice +tml-…{key[-4:]} +\d+ s +active +laptop$", shown, re.MULTILINE)


def test_keys_are_created_listed_and_revoked_beside_an_open_catalog(tmp_path: Path) -> None:
    async def with_a_server() -> tuple[dict[str, str], dict[str, str]]:
        async with await Catalog.open(f"sqlite:///{tmp_path}/catalog.sqlite3") as catalog:
            made = await asyncio.to_thread(run_json, "create", "bob", "--data", tmp_path)
            before = await active(catalog)
            await asyncio.to_thread(run_json, "revoke", made["key_id"], "--data", tmp_path)
            return {digest_of(made["key"]): "bob"}, before | await active(catalog)

    expected, seen = asyncio.run(with_a_server())

    assert seen == expected
    [entry] = run_json("ls", "--data", tmp_path)["keys"]
    assert (entry["user_id"], entry["key_id"]) == ("bob", "1")
    assert entry["revoked_at"] is not None
    assert "digest" not in entry


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["revoke", "7"], 1, "there is no active key '7'"),
        (["revoke", "x"], 1, "there is no active key 'x'"),
        (["create", "al ice"], 2, "a user's name has letters"),
        (["ls", "--data", "nowhere"], 3, "there is no catalog in"),
        (["create", "bob", "--data", "file"], 3, "cannot be created"),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHOCKSTONE_DATA", str(tmp_path / "data"))
    (tmp_path / "file").touch()
    run("create", "alice")

    result = run(*words)

    assert result.exit_code == code
    assert complaint in result.stderr


def test_a_key_is_revoked_once(tmp_path: Path) -> None:
    run("create", "alice", "--data", tmp_path)

    first, again = run("revoke", "1", "--data", tmp_path), run("revoke", "1", "--data", tmp_path)

    assert (first.exit_code, again.exit_code) == (0, 1)
    assert first.stdout == "revoked key 1 of alice\n"


def test_the_data_is_where_serve_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHOCKSTONE_DATA", raising=False)
    (tmp_path / "chockstone.toml").write_text("data = 'here'\n")

    run("create", "alice")

    assert (tmp_path / "here/catalog.sqlite3").exists()


def test_keys_are_in_the_database_that_the_server_is_told(tmp_path: Path) -> None:
    url = shared_postgres().create_schema()

    absent = run("ls", "--data", tmp_path, "--database", url)
    made = run_json("create", "alice", "--data", tmp_path, "--database", url)
    [listed] = run_json("ls", "--database", url)["keys"]
    revoked = run("revoke", listed["key_id"], "--database", url)

    assert (absent.exit_code, made["user_id"], revoked.exit_code) == (3, "alice", 0)
    assert "there is no catalog in 'postgresql://chockstone:***@" in absent.stderr
    assert list(tmp_path.iterdir()) == []  # nothing is made where nothing is needed


def test_keys_are_not_looked_for_where_the_catalog_was_before(tmp_path: Path) -> None:
    (tmp_path / "catalog.json").write_text('{"database": "postgresql://db/chockstone"}')

    for words in (["ls"], ["create", "bob"], ["revoke", "1"]):
        result = run(*words, "--data", tmp_path)
        assert result.exit_code == 3
        assert "is 'postgresql://db/chockstone': give that with --database" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["catalog.json"]


def test_a_database_that_does_not_let_us_in_is_told_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    url = shared_postgres().url("postgres", password="wrong-one")
    monkeypatch.setenv("CHOCKSTONE_DATABASE", url)

    result = run("create", "alice")

    assert result.exit_code == 3
    assert "check the user and the password" in result.stderr
    assert "wrong-one" not in result.stderr + result.stdout


def test_the_first_key_is_remembered_in_the_data_directory(tmp_path: Path) -> None:
    run("create", "alice", "--data", tmp_path)

    assert (tmp_path / "keys-required").exists()


def test_no_catalog_is_made_beside_archives(tmp_path: Path) -> None:
    archive = tmp_path / "checkpoints" / "run" / "weights" / "kept.tar"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"\0" * 4096)

    refused = run("create", "alice", "--data", tmp_path)

    assert refused.exit_code == 3
    assert "chockstone doctor --rebuild" in refused.stderr
    assert not (tmp_path / "catalog.sqlite3").exists()
