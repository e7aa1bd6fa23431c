"""A real Prometheus scrapes a real server while the SDK trains, samples, saves and loses a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest
import tinker
from prometheus_client.parser import text_string_to_metric_families
from tinker import types

from chockstone.telemetry.declarations import DECLARATIONS
from metrics.queries import RULES, DeployedQuery, dashboard_queries, rule_queries, rules
from support.exposition import series_of
from support.live import LiveServer
from support.prometheus import LivePrometheus

MODEL: Final = "tiny-qwen3"
ABSENT: Final = {  # from a server without a GPU and with one worker
    "chockstone_gpu_memory_used_bytes",
    "chockstone_gpu_memory_total_bytes",
    "chockstone_replica_ready",
    "chockstone_replica_runs",
    "chockstone_replica_memory_bytes",
}
MAX_SERIES: Final = 2500


class Scene(NamedTuple):
    server: LiveServer
    prometheus: LivePrometheus
    run_id: str
    sampled_tokens: int


@pytest.fixture(scope="module")
def scene(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("metrics")
    flags = ("--journal=synced", "--recovery-steps=2")
    with (
        LiveServer({MODEL: models[MODEL]}, home, *flags) as server,
        LivePrometheus(home / "prometheus", targets=[server.url.removeprefix("http://")], rules=RULES) as prometheus,
    ):
        prometheus.wait_for("chockstone_worker_ready == 1")
        run_id, sampled_tokens = work(server, prometheus)
        yield Scene(server, prometheus, run_id, sampled_tokens)


def work(server: LiveServer, prometheus: LivePrometheus) -> tuple[str, int]:
    """Something of each kind that the metrics count. Prometheus has seen all of it on return.

    Returns the id of the run and how many tokens were sampled.
    """
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    run = service.create_lora_training_client(base_model=MODEL, rank=8, seed=1)
    train(run, steps=3)
    path = run.save_state("first").result().path
    sampler = run.save_weights_and_get_sampling_client()
    sampled_tokens = sample(sampler)
    service.create_training_client_from_state_with_optimizer(path)
    for worker in server.workers():
        os.kill(worker, signal.SIGKILL)
    train(run, steps=3)
    prometheus.wait_for('chockstone_recoveries_total{reason="worker_died"} == 2')
    prometheus.wait_for("chockstone_sampler_decode_steps_total")  # of the new worker
    sampled_tokens += sample(sampler)
    train(run, steps=3)
    prometheus.wait_for("increase(chockstone_sampler_decode_steps_total[1m]) > 0")
    prometheus.wait_for(f"sum(chockstone_trained_tokens_total) >= {9 * 2 * 7}")
    prometheus.wait_for(f"sum(chockstone_sampled_tokens_total) >= {sampled_tokens}")
    return run.model_id, sampled_tokens


def sample(sampler: tinker.SamplingClient) -> int:
    """Returns how many tokens that gave."""
    params = types.SamplingParams(max_tokens=16, temperature=1.0, seed=1)
    prompt = types.ModelInput.from_ints([1, 2, 3, 4])
    answer = sampler.sample(prompt, num_samples=4, sampling_params=params).result()
    return sum(len(sequence.tokens) for sequence in answer.sequences)


def train(run: tinker.TrainingClient, *, steps: int) -> None:
    tokens = [3, 4, 5, 6, 7, 8, 9, 10]
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * 7},
    )
    for _ in range(steps):
        run.forward_backward([datum, datum], "cross_entropy")
        run.optim_step(types.AdamParams(learning_rate=1e-4)).result()


def read_metrics(server: LiveServer) -> str:
    return httpx.get(f"{server.url}/metrics", trust_env=False).text


def test_every_query_of_the_dashboard_runs(scene: Scene) -> None:
    for query in dashboard_queries():
        scene.prometheus.ask(query.text)


def test_every_panel_shows_data(scene: Scene) -> None:
    empty = [query for query in dashboard_queries() if not scene.prometheus.numbers(query.text)]

    def may_be_empty(query: DeployedQuery) -> bool:
        is_absent = any(metric in query.text for metric in ABSENT)
        is_annotation = query.text.startswith("changes(")
        no_failure = 'outcome!="ok"' in query.text or "status=" in query.text
        no_vllm = "chockstone_vllm_gap_nats" in query.text  # nothing was measured
        return is_absent or is_annotation or no_failure or no_vllm

    assert [query.where for query in empty if not may_be_empty(query)] == []


def test_the_numbers_are_those_of_what_was_done(scene: Scene) -> None:
    ask = scene.prometheus.ask

    assert ask("chockstone_trained_tokens_total") == [9 * 2 * 7]
    assert ask("chockstone_sampled_tokens_total") == [scene.sampled_tokens]
    assert ask("chockstone_prompt_tokens_total") == [2 * 4]
    assert ask("chockstone_worker_restarts_total") == [1]
    assert ask("chockstone_recovery_mismatches_total") == [0]
    assert ask('chockstone_recoveries_total{reason="worker_died"}') == [2]
    assert ask('chockstone_save_seconds_count{kind="weights"}') == [1]
    assert ask('chockstone_save_failures_total{kind="weights", reason="other"}') == [0]
    assert ask('chockstone_operations_total{operation="optim_step", outcome="ok"}') == [9]
    assert ask('chockstone_operation_seconds_count{operation="create_model"}') == [2]
    assert min(ask('chockstone_restore_seconds_count{purpose="load"}')) >= 1
    assert ask('chockstone_runs{state="ready"}') == [2]
    assert ask('chockstone_checkpoints{state="ready"}') == [1]
    assert min(ask('chockstone_save_seconds_count{kind="recovery"}')) >= 1
    assert min(ask("chockstone_journal_sync_seconds_count")) >= 18
    assert min(ask("chockstone_worker_memory_bytes")) > 1 << 20
    assert ask("sum(rate(chockstone_http_requests_total[1m])) > 0")


def test_prometheus_evaluates_every_alert_and_none_fires(scene: Scene) -> None:
    told = scene.prometheus.rules()
    for query in rule_queries():
        scene.prometheus.ask(query.text)

    assert {rule["name"] for rule in told} == {rule["alert"] for rule in rules()}
    assert [rule["name"] for rule in told if rule["health"] == "err"] == []
    assert [rule["name"] for rule in told if rule["state"] == "firing"] == []


def test_the_server_exports_what_is_declared_with_the_declared_types(scene: Scene) -> None:
    found = {}
    for family in text_string_to_metric_families(read_metrics(scene.server)):
        found[f"{family.name}_total" if family.type == "counter" else family.name] = (family.type, family.documentation)

    declared = {each.name: (each.kind, each.help) for each in DECLARATIONS.values() if each.name not in ABSENT}
    of_library = {name for name in declared if name.startswith("chockstone_process_")}
    assert found.keys() == declared.keys()
    assert {name: found[name] for name in found.keys() - of_library} == {
        name: declared[name] for name in declared.keys() - of_library
    }
    assert all(found[name][0] == declared[name][0] for name in of_library)


def test_clients_cannot_make_up_series(scene: Scene) -> None:
    before = {line.partition(" ")[0] for line in read_metrics(scene.server).splitlines()}

    with httpx.Client(base_url=scene.server.url, trust_env=False, headers={"X-API-Key": scene.server.key}) as http:
        for number in range(50):
            http.get(f"/made/up/{number}")
            http.request(f"MADE{number}", "/metrics")
            http.get(f"/api/v1/training_runs/made-up-{number}")
            http.get("/api/v1/healthz", headers={"X-Request-ID": f"made-up-{number}"})

    text = ""
    refused = 'chockstone_http_requests_total{method="GET", route="(none)", status="404"}'
    while series_of(text).get(refused, 0) < 50:  # the page is made once a second
        text = read_metrics(scene.server)
    new = {line.partition(" ")[0] for line in text.splitlines()} - before
    assert len(new) < 100, new  # histograms of a few routes that no one had called before
    assert not [line for line in text.splitlines() if "made" in line.lower()]
    assert len(text.splitlines()) < MAX_SERIES


def test_no_user_run_or_session_is_named(scene: Scene) -> None:
    text = read_metrics(scene.server)

    assert scene.run_id not in text
    assert scene.run_id.partition(":")[0] not in text
    assert 'user="' not in text and 'owner="' not in text
