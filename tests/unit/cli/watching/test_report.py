from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cli.loopback import Loopback, serve_on_loopback
from support.cli.remote_commands import fill


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with serve_on_loopback(tmp_path_factory.mktemp("watch") / "home") as served:
        fill(served)
        yield served


def test_without_a_terminal_it_prints_one_report(loopback: Loopback) -> None:
    result = loopback.run("watch")

    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert result.stdout.count("chockstone ") == 1
    assert "RUN" in result.stdout
    assert "q quits" not in result.stdout


def test_json_has_the_server_and_its_runs(loopback: Loopback) -> None:
    shown = loopback.json("watch")

    assert shown["url"] == loopback.url
    assert len(shown["runs"]) == 1
    assert shown["server"]["worker"]["state"] == "ready"


def test_a_refused_interval_is_a_usage_error(loopback: Loopback) -> None:
    assert loopback.run("watch", "--interval", "0").exit_code == 2
