"""Saving and loading through the SDK: exact continuation, names, lifetimes, and what a repeat gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import tinker
from tinker import types

from sdk.making import ADAM, MODEL, batch, create, numbers, step, train
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]
describes = pytest.mark.skipif(
    "user_metadata" not in inspect.signature(tinker.TrainingClient.save_state).parameters,
    reason="this SDK saves no metadata",
)
deprecated = pytest.mark.filterwarnings("ignore:.*load_state:FutureWarning")


def failure(future: Any) -> tinker.RequestFailedError:
    with pytest.raises(tinker.RequestFailedError) as caught:
        future.result()
    return caught.value


@pytest.mark.parametrize("rank", [4, 0])
def test_a_resumed_run_continues_bit_for_bit(live: LiveServer, connect: Connect, rank: int) -> None:
    run = create(connect(live), rank=rank)
    train(run, 3)
    path = run.save_state("halfway").result().path
    expected = train(run, 3, start=3)

    resumed = connect(live).create_training_client_from_state_with_optimizer(path)

    assert path == f"tinker://{run.model_id}/weights/halfway"
    assert train(resumed, 3, start=3) == expected


def test_a_gradient_in_hand_is_saved_and_resumed(live: LiveServer, connect: Connect) -> None:
    run = create(connect(live))
    run.forward_backward(batch(0), "cross_entropy").result()
    path = run.save_state("mid-step").result().path
    run.optim_step(ADAM).result()

    resumed = connect(live).create_training_client_from_state_with_optimizer(path)
    resumed.optim_step(ADAM).result()

    assert train(resumed, 2, start=1) == train(run, 2, start=1)


def test_without_its_optimizer_a_run_starts_with_a_fresh_one(live: LiveServer, connect: Connect) -> None:
    run = create(connect(live))
    train(run, 3)
    path = run.save_state("weights-only").result().path

    fresh = connect(live).create_training_client_from_state(path)
    first, second = train(fresh, 2, start=3)

    expected = train(run, 2, start=3)
    assert first == expected[0]  # the same weights
    assert second != expected[1]  # other moments


def test_a_resumed_run_has_the_shape_it_had(live: LiveServer, connect: Connect, rest: tinker.RestClient) -> None:
    run = create(connect(live), rank=2, train_mlp=False, train_unembed=False)
    path = run.save_state("shape").result().path

    resumed = connect(live).create_training_client_from_state(path, user_metadata={"from": "shape"})

    weights = rest.get_weights_info_by_tinker_path(path).result()
    assert (weights.base_model, weights.is_lora, weights.lora_rank) == (MODEL, True, 2)
    assert (weights.train_attn, weights.train_mlp, weights.train_unembed) == (True, False, False)
    assert resumed.get_info().lora_rank == 2
    assert resumed.model_id != run.model_id
    assert rest.get_training_run(resumed.model_id).result().user_metadata == {"from": "shape"}


@deprecated
def test_a_state_loads_into_a_run_that_is_there(service: tinker.ServiceClient) -> None:
    run, other = create(service), create(service, seed=2)
    train(run, 2)
    path = run.save_state("to-load").result().path
    train(other, 1)

    other.load_state_with_optimizer(path).result()

    assert train(other, 2, start=2) == train(run, 2, start=2)


@deprecated
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(service: tinker.ServiceClient) -> None:
    small, large = create(service, rank=2), create(service, rank=4)
    path = small.save_state("small").result().path
    before = numbers(large.forward(batch(0), "cross_entropy").result())

    error = failure(large.load_state(path))

    assert error.category == types.RequestErrorCategory.User
    assert "the checkpoint has rank 2, the run 4" in error.message
    assert numbers(large.forward(batch(0), "cross_entropy").result()) == before


@deprecated
def test_a_state_of_another_base_model_is_refused(service: tinker.ServiceClient) -> None:
    path = create(service).save_state("of-qwen").result().path
    llama = service.create_lora_training_client(base_model="tiny-llama", rank=4)

    error = failure(llama.load_state(path))

    assert error.category == types.RequestErrorCategory.User
    assert "tiny-qwen3" in error.message
    assert "tiny-llama" in error.message


def test_resuming_makes_the_run_that_the_client_expects(live: LiveServer, connect: Connect) -> None:
    """One request makes and loads; a repeat of it is the same run."""
    path = create(connect(live)).save_state("origin").result().path
    service = connect(live)
    session_id = service.holder.get_session_id()
    body = {"session_id": session_id, "model_seq_id": 0, "path": path, "optimizer": True, "type": "load_weights"}

    with live.http() as http:
        first, again = (http.post("load_weights", json=body).json() for _ in range(2))
        answer = http.post("retrieve_future", json={"request_id": first["request_id"]}).json()

    assert again == first
    assert answer["model_id"] == f"{session_id}:train:0"


def test_a_step_after_a_save_is_not_in_it(live: LiveServer, connect: Connect) -> None:
    run = create(connect(live))
    step(run, batch(0))

    saving = run.save_state("before")
    later = train(run, 2, start=1)  # queued behind the save, which may still be writing

    resumed = connect(live).create_training_client_from_state_with_optimizer(saving.result().path)
    assert train(resumed, 2, start=1) == later


def test_a_taken_name_is_refused(service: tinker.ServiceClient) -> None:
    run = create(service)
    run.save_state("taken").result()

    error = failure(run.save_state("taken"))

    assert error.category == types.RequestErrorCategory.User
    assert f"tinker://{run.model_id}/weights/taken exists already" in error.message
    assert run.save_weights_for_sampler("taken").result().path.endswith("/sampler_weights/taken")  # a space of its own
    assert failure(run.save_weights_for_sampler("taken")).category == types.RequestErrorCategory.User


@describes
def test_overwriting_replaces_state_and_metadata(live: LiveServer, connect: Connect, rest: tinker.RestClient) -> None:
    run = create(connect(live))
    run.save_state("newest", user_metadata={"step": "0"}).result()
    train(run, 2)

    path = run.save_state("newest", overwrite=True).result().path

    resumed = connect(live).create_training_client_from_state_with_optimizer(path)
    assert train(resumed, 1, start=2) == train(run, 1, start=2)
    checkpoint = rest.get_training_run(run.model_id).result().last_checkpoint
    assert checkpoint is not None
    assert (checkpoint.tinker_path, checkpoint.user_metadata or {}) == (path, {})


@describes
def test_a_lifetime_and_metadata_are_kept(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)

    run.save_state("short-lived", ttl_seconds=3600, user_metadata={"loss": "0.5"}).result()

    checkpoint = rest.get_training_run(run.model_id).result().last_checkpoint
    assert checkpoint is not None
    assert checkpoint.checkpoint_id == "weights/short-lived"
    assert checkpoint.checkpoint_type == "training"
    assert checkpoint.user_metadata == {"loss": "0.5"}
    assert checkpoint.size_bytes is not None and checkpoint.size_bytes > 1000
    left = checkpoint.expires_at - datetime.now(UTC)
    assert timedelta(minutes=58) < left <= timedelta(hours=1)


@pytest.mark.parametrize("ttl_seconds", [0, -1, 3599, 400_000_000])
def test_a_lifetime_out_of_range_is_refused(service: tinker.ServiceClient, ttl_seconds: int) -> None:
    with pytest.raises(tinker.APIStatusError) as caught:
        create(service).save_state("x", ttl_seconds=ttl_seconds).result()

    assert caught.value.status_code in (400, 422)


@pytest.mark.parametrize("name", ["", "a/b", "../up", "with space", "é", "x" * 256, "a?b", "."])
def test_a_bad_name_is_refused_at_once(service: tinker.ServiceClient, name: str) -> None:
    run = create(service)

    with pytest.raises(tinker.APIStatusError) as caught:
        run.save_state(name).result()

    assert caught.value.status_code in (400, 422)
    assert run.save_state("fine").result().path.endswith("/weights/fine")


@pytest.mark.parametrize("name", ["000020", "step-100", "a.b_C-9", "x" * 255])
def test_a_good_name_is_taken_as_it_is(service: tinker.ServiceClient, name: str) -> None:
    assert create(service).save_state(name).result().path.endswith(f"/weights/{name}")


def test_an_unknown_checkpoint_is_not_found(service: tinker.ServiceClient) -> None:
    run = create(service)

    for path in (f"tinker://{run.model_id}/weights/never-saved", "tinker://no-such-run/weights/x"):
        with pytest.raises(tinker.NotFoundError):
            service.create_training_client_from_state(path)


def test_weights_for_a_sampler_cannot_be_trained_on(service: tinker.ServiceClient) -> None:
    path = create(service).save_weights_for_sampler("for-sampling").result().path

    with pytest.raises(tinker.BadRequestError, match="sampler_weights"):
        service.create_training_client_from_state(path)


@pytest.mark.parametrize("endpoint", ["save_weights", "save_weights_for_sampler"])
def test_a_repeated_save_is_the_first_one(live: LiveServer, service: tinker.ServiceClient, endpoint: str) -> None:
    run = create(service)
    body = {"model_id": run.model_id, "seq_id": 1, "path": "once"}

    with live.http() as http:
        ids = {http.post(endpoint, json=body).json()["request_id"] for _ in range(3)}
        (request_id,) = ids
        answers = [http.post("retrieve_future", json={"request_id": request_id}).json() for _ in range(2)]
        late = http.post(endpoint, json=body).json()["request_id"]

    assert answers[0] == answers[1]
    assert answers[0]["path"].endswith("/once")
    assert late == request_id


def test_saves_of_many_runs_at_once_all_stand(live: LiveServer, connect: Connect) -> None:
    service = connect(live)
    runs = [create(service, seed=seed) for seed in range(4)]
    for run in runs:
        step(run, batch(0))

    saves = [run.save_state(f"s{number}") for number in range(3) for run in runs]
    paths = [saving.result().path for saving in saves]

    assert len(set(paths)) == 12
    resumed = service.create_training_client_from_state_with_optimizer(paths[-1])
    assert train(resumed, 1, start=1) == train(runs[-1], 1, start=1)
