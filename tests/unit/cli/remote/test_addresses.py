from __future__ import annotations

import pytest
import typer

from chockstone.cli.remote.addresses import find_run, is_address, parse_path, route, run_route
from chockstone.cli.remote.client import connect
from support.cli.loopback import Loopback
from support.cli.remote_commands import fill

NOWHERE = connect("http://127.0.0.1:9", "tml-local")  # a request to it fails the test
WHOLE = "01234567-89ab-cdef-0123-456789abcdef:train:0"


def test_a_path_of_a_server_is_told_from_a_store() -> None:
    assert is_address("tinker://run/weights/a")
    assert not any(map(is_address, (None, "./store", "s3://bucket/run")))


def test_a_path_leads_to_its_route() -> None:
    path = parse_path("tinker://run-1/weights/step-100")

    assert route(path, "ttl") == "training_runs/run-1/checkpoints/weights/step-100/ttl"
    assert run_route("run-1") == "training_runs/run-1"


def test_a_whole_run_id_costs_no_request() -> None:
    assert {find_run(NOWHERE, word) for word in (WHOLE, f"tinker://{WHOLE}", f"tinker://{WHOLE}/")} == {WHOLE}


@pytest.mark.parametrize("word", ["tinker://", "tinker://run", "tinker://run/strange/a", "run/weights/a"])
def test_what_is_no_path_is_a_usage_error(word: str) -> None:
    with pytest.raises(typer.BadParameter, match="`chockstone checkpoints ls` lists your checkpoints"):
        parse_path(word)


def test_runs_and_checkpoints_are_found_by_a_unique_prefix_everywhere(asked: Loopback) -> None:
    run_id, _ = fill(asked, "step-1", "step-2")
    other, _ = fill(asked)
    short = run_id[:10]
    first, second = f"tinker://{short}/weights/step-1", f"tinker://{short}/weights/s"

    for words in (
        ["runs", "show", short],
        ["runs", "recoveries", short],
        ["checkpoints", "ls", "--run", short],
        ["checkpoints", "show", first],
        ["checkpoints", "verify", "--run", short],
        ["checkpoints", "ttl", first, "7d"],
        ["checkpoints", "publish", first],
        ["checkpoints", "unpublish", first],
        ["checkpoints", "gc", "--run", short, "--dry-run"],
        ["policy", "set", "--run", short, "--keep-last", "9"],
        ["audit", "--run", short],
    ):
        result = asked.run(*words)
        assert (result.exit_code, other in result.stdout) == (0, False), (words, result.output)

    ambiguous = asked.run("checkpoints", "show", second)
    assert ambiguous.exit_code == 2
    assert "'weights/s' is the beginning of 2 checkpoints" in ambiguous.stderr
    assert "weights/step-1" in ambiguous.stderr
    assert asked.run("runs", "show", "").exit_code == 2


def test_a_name_is_shortened_for_reading_and_never_for_removal(asked: Loopback) -> None:
    run_id, [path] = fill(asked, "step-100")
    short = f"tinker://{run_id}/weights/step-1"

    shown, removed = asked.run("checkpoints", "show", short), asked.run("checkpoints", "rm", short, "--yes")

    assert (shown.exit_code, path in shown.stdout) == (0, True)
    assert (removed.exit_code, "does not exist" in removed.stderr) == (1, True)
    assert asked.run("checkpoints", "show", path).exit_code == 0


def test_an_ambiguous_run_is_an_error_with_candidates_and_changes_nothing(asked: Loopback) -> None:
    user = asked.user()
    session = asked.wait(user.session())
    ids = [asked.wait(user.run(session)) for _ in range(2)]

    refused = asked.run("runs", "rm", session[:8], "--yes")

    assert refused.exit_code == 2
    assert all(run_id in refused.stderr for run_id in ids)
    assert asked.run("runs", "show", f"{session[:8]}:{ids[1].partition(':')[2]}").exit_code == 0
    assert len(asked.json("runs", "ls")["training_runs"]) == 2
