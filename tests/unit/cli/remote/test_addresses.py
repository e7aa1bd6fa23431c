from __future__ import annotations

import pytest
import typer

from chockstone.cli.remote.addresses import find_path, find_run, is_address, route, run_route


def test_a_path_of_a_server_is_told_from_a_store() -> None:
    assert is_address("tinker://run/weights/a")
    assert not any(map(is_address, (None, "./store", "s3://bucket/run")))


def test_a_path_leads_to_its_route() -> None:
    path = find_path("tinker://run-1/weights/step-100")

    assert route(path, "ttl") == "training_runs/run-1/checkpoints/weights/step-100/ttl"
    assert run_route("run-1") == "training_runs/run-1"


def test_a_run_is_named_by_its_id_or_its_address() -> None:
    assert find_run("run-1") == find_run("tinker://run-1") == find_run("tinker://run-1/") == "run-1"


@pytest.mark.parametrize("word", ["tinker://", "tinker://run", "tinker://run/strange/a", "run/weights/a"])
def test_what_is_no_path_is_a_usage_error(word: str) -> None:
    with pytest.raises(typer.BadParameter, match="`chockstone checkpoints ls` shows them"):
        find_path(word)
