from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from chockstone.catalog import Catalog
from chockstone.cli.app import app
from chockstone.cli.local.api_keys import users_with_keys
from chockstone.cli.settings.settings import Settings


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["keys", *map(str, words)], catch_exceptions=False)


def run_json(*words: str | Path) -> Any:
    return json.loads(run(*words, "--json").stdout)


def test_a_server_that_looked_into_its_catalog_twice_still_sees_what_other_processes_write(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chockstone.cli", "keys", "create", "bob", "--data", str(tmp_path)]

    async def with_a_server() -> list[int]:
        async with await Catalog.open(f"sqlite:///{tmp_path}/catalog.sqlite3") as catalog:
            await catalog.keys.list()
            await asyncio.to_thread(users_with_keys, Settings(data=tmp_path))  # as is done before it starts
            seen = []
            for _ in range(3):
                await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
                seen.append(len(await catalog.keys.list()))
            return seen

    assert asyncio.run(with_a_server()) == [1, 2, 3]


def test_a_catalog_of_an_older_server_is_not_changed_under_it(tmp_path: Path) -> None:
    run("create", "alice", "--data", tmp_path)
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite3", isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0003'")

    for words in (["ls"], ["create", "bob"], ["revoke", "1"]):
        result = run(*words, "--data", tmp_path)
        assert result.exit_code == 3
        assert "is brought up to date when a server of this version starts on it" in result.stderr
    assert users_with_keys(Settings(data=tmp_path)) is None  # a server may start, and find out
