"""``tinker checkpoint``, ``session`` and ``billing``, end to end."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tinker
from safetensors.numpy import load_file

from sdk.checkpoints import archives, entry, listed
from sdk.commands import Tinker, parsed, said, tinker_command
from sdk.making import batch, create, step
from support.live import LiveServer


@pytest.fixture
def run_tinker(live: LiveServer, tmp_path: Path) -> Tinker:
    return tinker_command(live, tmp_path)


def test_list_and_info(run_tinker: Tinker, service: tinker.ServiceClient) -> None:
    run = create(service)
    path = run.save_state("shown", user_metadata={"note": "steep"}).result().path

    of_run = parsed(run_tinker("-f", "json", "checkpoint", "list", "--run-id", run.model_id))["checkpoints"]
    of_all = parsed(run_tinker("-f", "json", "checkpoint", "list", "--limit", "0"))["checkpoints"]
    info = said(run_tinker("checkpoint", "info", path))

    assert [each["tinker_path"] for each in of_run] == [path]
    assert path in {each["tinker_path"] for each in of_all}
    assert "shown" in info


def test_publish_and_lifetime(run_tinker: Tinker, service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    path = create(service).save_state("shared").result().path

    said(run_tinker("checkpoint", "publish", path))
    assert entry(rest, path).public
    said(run_tinker("checkpoint", "unpublish", path))
    assert not entry(rest, path).public
    said(run_tinker("checkpoint", "set-ttl", path, "--ttl", "7200"))
    assert entry(rest, path).expires_at is not None
    said(run_tinker("checkpoint", "set-ttl", path, "--remove"))
    assert entry(rest, path).expires_at is None


def test_delete_by_path_and_by_run(
    run_tinker: Tinker, live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    paths = [saving.result().path for saving in [run.save_state(f"s{number}") for number in range(6)]]
    run.save_weights_for_sampler("kept").result()

    said(run_tinker("checkpoint", "delete", "-y", *paths[:2]))
    assert listed(rest, run.model_id) == {*(f"weights/s{number}" for number in range(2, 6)), "sampler_weights/kept"}
    said(run_tinker("checkpoint", "delete", "-y", "--run-id", run.model_id, "--type", "weights"))

    assert listed(rest, run.model_id) == {"sampler_weights/kept"} == archives(live, run.model_id)


@pytest.mark.parametrize("kind", ["weights", "external_weights"])
def test_download(run_tinker: Tinker, service: tinker.ServiceClient, tmp_path: Path, kind: str) -> None:
    run = create(service, rank=4)
    step(run, batch(0))
    save = run.save_state if kind == "weights" else run.save_weights_external
    path = save("fetched").result().path

    said(run_tinker("checkpoint", "download", path, "-o", str(tmp_path / "out")))

    (config,) = (tmp_path / "out").rglob("adapter_config.json")
    assert json.loads(config.read_text())["r"] == 4
    assert load_file(config.parent / "adapter_model.safetensors")


def test_the_download_of_a_state_leaves_nothing_behind(
    run_tinker: Tinker, live: LiveServer, service: tinker.ServiceClient, tmp_path: Path
) -> None:
    path = create(service).save_state("clean").result().path
    before = {each.name for each in live.store.entries()}

    said(run_tinker("checkpoint", "download", path, "-o", str(tmp_path / "out")))

    assert {each.name for each in live.store.entries()} == before


def test_a_trace_of_a_session(run_tinker: Tinker, service: tinker.ServiceClient, tmp_path: Path) -> None:
    run = create(service)
    step(run, batch(0))
    run.save_state("traced").result()
    session_id = service.holder.get_session_id()

    said(run_tinker("session", "export-trace", session_id, "-o", str(tmp_path / "trace.pftrace")))

    assert run.model_id.encode() in (tmp_path / "trace.pftrace").read_bytes()


def test_the_bill(run_tinker: Tinker, live: LiveServer, service: tinker.ServiceClient, tmp_path: Path) -> None:
    run = create(service)
    step(run, batch(0))
    run.save_state("billed").result()
    start = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:00:00Z")
    end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:00:00Z")

    usage = parsed(run_tinker("-f", "json", "billing", "usage", start, end))
    storage = parsed(run_tinker("-f", "json", "billing", "checkpoint-storage"))
    said(run_tinker("billing", "usage", start, end, "--csv", str(tmp_path / "usage.csv")))

    session_id = service.holder.get_session_id()
    own = [row for row in usage["data"] if row["session_id"] == session_id]
    trained = [row["event_info"]["token_count"] for row in own if row["event_info"]["type"] == "training"]
    assert sum(trained) == sum(datum.model_input.length for datum in batch(0))
    assert all(row["estimated_cost_usd"] is None for row in own)
    assert storage["data"][0]["size_bytes"] > 0
    with open(tmp_path / "usage.csv", newline="") as file:
        assert list(csv.DictReader(file))
