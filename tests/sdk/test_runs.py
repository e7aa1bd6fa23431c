"""Training runs, as the SDK lists and looks them up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import tinker
from tinker import types

from sdk.making import MODEL, batch, create, datum, step, tokens
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]


def test_a_run_is_described(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service, rank=8, user_metadata={"renderer_name": "qwen3"})

    described = rest.get_training_run(run.model_id).result()

    assert described.training_run_id == run.model_id
    assert (described.base_model, described.is_lora, described.lora_rank) == (MODEL, True, 8)
    assert described.model_owner == "local"
    assert described.user_metadata == {"renderer_name": "qwen3"}
    assert not described.corrupted
    assert described.last_checkpoint is None
    assert described.last_sampler_checkpoint is None
    assert datetime.now(UTC) - described.last_request_time < timedelta(minutes=1)


def test_a_run_of_rank_zero_is_no_lora(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    assert not rest.get_training_run(create(service, rank=0).model_id).result().is_lora


def test_the_last_checkpoints_are_shown(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)
    run.save_state("one").result()
    last = run.save_state("two").result().path
    sampler = run.save_weights_for_sampler("three").result().path
    run.save_weights_and_get_sampling_client()  # has no name, and is not listed

    described = rest.get_training_run(run.model_id).result()

    assert described.last_checkpoint is not None
    assert described.last_sampler_checkpoint is not None
    assert described.last_checkpoint.tinker_path == last
    assert described.last_sampler_checkpoint.tinker_path == sampler
    assert described.last_sampler_checkpoint.checkpoint_type == "sampler"


def test_a_run_is_found_by_the_path_of_a_checkpoint(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)
    path = run.save_state("x").result().path

    assert rest.get_training_run_by_tinker_path(path).result().training_run_id == run.model_id


def test_work_is_seen_at_once(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)
    before = rest.get_training_run(run.model_id).result().last_request_time

    step(run, batch(0))

    assert rest.get_training_run(run.model_id).result().last_request_time > before


def test_runs_are_listed_newest_first_in_pages(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    ids = [create(service, seed=seed).model_id for seed in range(3)]

    first = rest.list_training_runs(limit=2).result()
    second = rest.list_training_runs(limit=2, offset=2).result()

    assert [run.training_run_id for run in first.training_runs] == ids[:0:-1]
    assert second.training_runs[0].training_run_id == ids[0]
    assert first.cursor.total_count == second.cursor.total_count >= 3
    assert (first.cursor.offset, first.cursor.limit, second.cursor.offset) == (0, 2, 2)


def test_runs_are_listed_by_project(live: LiveServer, connect: Connect, rest: tinker.RestClient) -> None:
    run = create(connect(live, project_id="project-of-one-run"))

    listed = rest.list_training_runs(project_id="project-of-one-run").result().training_runs

    assert [listed_run.training_run_id for listed_run in listed] == [run.model_id]


@pytest.mark.skipif(not hasattr(tinker.ServiceClient, "close"), reason="this SDK leaves sessions open")
def test_a_run_stays_listed_when_its_session_is_finished(
    live: LiveServer, connect: Connect, rest: tinker.RestClient
) -> None:
    service = connect(live)
    run = create(service)
    service.close("success").result()

    assert rest.get_training_run(run.model_id).result().training_run_id == run.model_id


def test_an_unknown_run_is_not_found(rest: tinker.RestClient) -> None:
    with pytest.raises(tinker.NotFoundError):
        rest.get_training_run("no-such-run").result()


def test_lists_that_hold_an_export_parse(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    state = run.save_state("state").result().path
    with live.http() as http:  # older clients cannot ask for an export
        wish = {"model_id": run.model_id, "seq_id": 1000, "path": "export"}
        accepted = http.post("save_weights_external", json=wish).json()
        assert "path" in http.post("retrieve_future", json={"request_id": accepted["request_id"]}).json()

    of_run = rest.list_checkpoints(run.model_id).result().checkpoints
    of_user = rest.list_user_checkpoints(limit=100).result().checkpoints

    assert state in [one.tinker_path for one in of_run]
    assert state in [one.tinker_path for one in of_user]
    assert rest.get_training_run(run.model_id).result().training_run_id == run.model_id


def test_a_name_with_a_context_limit_means_the_model_within_that_limit(
    service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    name = f"{MODEL}:peft:40"
    run = service.create_lora_training_client(base_model=name, rank=4)

    step(run, [datum(1, length=40)])
    with pytest.raises(tinker.RequestFailedError, match="41 tokens, but the model's context ends at 40"):
        run.forward_backward([datum(1, length=41)], "cross_entropy").result()
    path = run.save_state("x").result().path
    sampler = run.save_weights_and_get_sampling_client()

    assert rest.get_training_run(run.model_id).result().base_model == name
    assert run.get_info().model_data.model_name == name
    assert rest.get_weights_info_by_tinker_path(path).result().base_model == name
    resumed = service.create_training_client_from_state_with_optimizer(path)
    assert resumed.get_info().model_data.model_name == name
    for limited in (sampler, service.create_sampling_client(base_model=name)):
        _check_limit(limited)
    assert len(_sample(service.create_sampling_client(base_model=MODEL), 30, 30)) == 30


def _check_limit(sampler: tinker.SamplingClient) -> None:
    assert len(_sample(sampler, 30, 10)) == 10
    assert len(_sample(sampler, 30, None)) == 10
    with pytest.raises(tinker.BadRequestError, match=r"30 prompt tokens \+ 11 max_tokens > 40"):
        _sample(sampler, 30, 11)


def _sample(sampler: tinker.SamplingClient, length: int, max_tokens: int | None) -> list[int]:
    prompt = types.ModelInput.from_ints(tokens(1, length))
    params = types.SamplingParams(max_tokens=max_tokens, stop=[])
    return sampler.sample(prompt, 1, params).result().sequences[0].tokens


@pytest.mark.filterwarnings("ignore:DEPRECATED")
def test_a_checkpoint_loads_into_a_run_with_another_context_limit(service: tinker.ServiceClient) -> None:
    path = create(service).save_state("x").result().path
    limited = service.create_lora_training_client(base_model=f"{MODEL}:peft:40", rank=4)

    assert limited.load_state(path).result().path == path


def test_a_context_limit_needs_a_model_that_is_served(service: tinker.ServiceClient) -> None:
    with pytest.raises(tinker.BadRequestError, match="'nobody:peft:40' is not served here"):
        service.create_lora_training_client(base_model="nobody:peft:40", rank=4)
