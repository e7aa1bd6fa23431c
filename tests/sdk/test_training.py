"""Runs through the SDK: how they are made, and the order, isolation and exactness of what they do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tinker
import torch
from tinker import types

from sdk.making import ADAM, MODEL, VOCABULARY, batch, create, datum, numbers, step, tokens, train
from support.live import LiveServer
from support.plain_model import PlainModel

Connect = Callable[..., tinker.ServiceClient]
NAN = float("nan")
chooses_optimizer = pytest.mark.skipif(not hasattr(tinker, "DimuonParams"), reason="this SDK knows AdamW only")


@pytest.fixture(scope="module", params=["tiny-qwen3", "tiny-llama"])
def plain(request: pytest.FixtureRequest, models: dict[str, Any]) -> tuple[str, PlainModel]:
    return request.param, PlainModel(models[request.param])


def failure(future: Any) -> tinker.RequestFailedError:
    with pytest.raises(tinker.RequestFailedError) as caught:
        future.result()
    return caught.value


@pytest.mark.parametrize("rank", [1, 8, 0])
def test_a_new_run_says_what_the_base_model_says(
    service: tinker.ServiceClient, plain: tuple[str, PlainModel], rank: int
) -> None:
    name, model = plain
    run = service.create_lora_training_client(base_model=name, rank=rank)
    text = tokens(5, 40)

    output = run.forward([datum(5, length=39)], "cross_entropy").result()

    with torch.no_grad():
        expected = model.logprobs(text[:-1], torch.tensor(text[1:]))
    assert numbers(output)[0] == pytest.approx(expected.tolist(), abs=1e-4)
    assert output.metrics["loss:sum"] == pytest.approx(-float(expected.sum()), abs=1e-3)


def test_the_same_seed_gives_the_same_numbers(service: tinker.ServiceClient) -> None:
    assert train(create(service, seed=7), 3) == train(create(service, seed=7), 3)


def test_another_seed_gives_other_numbers(service: tinker.ServiceClient) -> None:
    first, second = train(create(service, seed=7), 2), train(create(service, seed=8), 2)

    assert first[0] == second[0]  # the first pass sees the base model
    assert first[1] != second[1]


def test_without_a_seed_runs_differ(service: tinker.ServiceClient) -> None:
    assert train(create(service, seed=None), 2)[1] != train(create(service, seed=None), 2)[1]


def test_each_part_of_the_model_can_be_trained_alone(service: tinker.ServiceClient) -> None:
    parts = ("train_attn", "train_mlp", "train_unembed")
    norms = {}
    for part in parts:
        run = create(service, **{name: name == part for name in parts})
        run.forward_backward(batch(1), "cross_entropy").result()
        norms[part] = run.optim_step(ADAM).result().metrics["grad_norm"]
    run = create(service)
    run.forward_backward(batch(1), "cross_entropy").result()
    whole = run.optim_step(ADAM).result().metrics["grad_norm"]

    assert min(norms.values()) > 0
    assert math.hypot(*norms.values()) == pytest.approx(whole, rel=1e-4)
    assert len({round(norm, 6) for norm in norms.values()}) == 3


def test_rank_zero_trains_every_weight_as_adamw_does(service: tinker.ServiceClient, models: dict[str, Any]) -> None:
    run, model = create(service, rank=0), PlainModel(models[MODEL])
    optimizer = torch.optim.AdamW(
        model.model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.01, foreach=False
    )
    adam = types.AdamParams(learning_rate=1e-3, weight_decay=0.01)
    text = tokens(3, 31)

    theirs, ours = [], []
    for _ in range(4):
        logprobs = model.logprobs(text[:-1], torch.tensor(text[1:]))
        theirs.append(-float(logprobs.detach().sum()))
        optimizer.zero_grad()
        (-logprobs.sum()).backward()
        optimizer.step()
        passed = run.forward_backward([datum(3, length=30)], "cross_entropy")
        run.optim_step(adam).result()
        ours.append(passed.result().metrics["loss:sum"])

    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours[-1] < ours[0]


def test_an_unknown_base_model_is_refused_at_once(service: tinker.ServiceClient) -> None:
    started = time.monotonic()

    with pytest.raises(tinker.BadRequestError, match="'gpt-17' is not served here; there are tiny-llama, tiny-qwen3"):
        service.create_lora_training_client(base_model="gpt-17")

    assert time.monotonic() - started < 3


@chooses_optimizer
def test_an_unknown_optimizer_is_refused_with_the_known_ones(service: tinker.ServiceClient) -> None:
    with pytest.raises(tinker.BadRequestError, match="'dimuon' is not supported here; choose one of adamw"):
        create(service, optimizer=types.DimuonOptimizerConfig())


@chooses_optimizer
def test_a_step_of_another_optimizer_fails_and_changes_nothing(service: tinker.ServiceClient) -> None:
    run, other = create(service), create(service)
    run.forward_backward(batch(0), "cross_entropy").result()

    wrong = failure(run.optim_step(types.DimuonParams(learning_rate=1e-2)))
    run.optim_step(ADAM).result()

    step(other, batch(0))
    assert wrong.category == types.RequestErrorCategory.User
    assert train(run, 2, start=1) == train(other, 2, start=1)


def test_info_describes_the_run(service: tinker.ServiceClient) -> None:
    run = create(service, rank=16)

    info = run.get_info()

    assert info.model_id == run.model_id
    assert (info.model_data.model_name, info.is_lora, info.lora_rank) == (MODEL, True, 16)
    if hasattr(types, "AdamOptimizerConfig"):
        assert info.optimizer_config.type == "adamw"


def test_the_tokenizer_needs_no_network(service: tinker.ServiceClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer = create(service).get_tokenizer()

    assert tokenizer.decode(tokenizer.encode("a rock in a crack")) == "a rock in a crack"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)


def test_gradients_add_up_until_the_step(service: tinker.ServiceClient) -> None:
    parts, whole = create(service), create(service)
    data = batch(1, size=4)

    parts.forward_backward(data[:1], "cross_entropy")
    parts.forward(data, "cross_entropy")  # adds nothing
    parts.forward_backward(data[1:], "cross_entropy")
    in_parts = parts.optim_step(ADAM).result().metrics["grad_norm"]
    whole.forward_backward(data, "cross_entropy")
    at_once = whole.optim_step(ADAM).result().metrics["grad_norm"]

    assert in_parts == pytest.approx(at_once, rel=1e-5)
    after_parts = parts.forward(data, "cross_entropy").result().metrics["loss:sum"]
    after_whole = whole.forward(data, "cross_entropy").result().metrics["loss:sum"]
    assert after_parts == pytest.approx(after_whole, rel=1e-4)


def test_a_step_without_gradient_changes_nothing(service: tinker.ServiceClient) -> None:
    run = create(service)
    before = numbers(run.forward(batch(0), "cross_entropy").result())

    run.optim_step(ADAM).result()

    assert numbers(run.forward(batch(0), "cross_entropy").result()) == before


def test_clipping_scales_the_gradient(service: tinker.ServiceClient) -> None:
    """With AdamW's own scaling out of the way, a clipped gradient moves the weights less."""
    losses = {}
    for norm in (0.0, 1e-3):
        run = create(service)
        start = run.forward_backward(batch(0), "cross_entropy").result().metrics["loss:sum"]
        metrics = run.optim_step(types.AdamParams(learning_rate=1e-2, eps=1.0, grad_clip_norm=norm)).result().metrics
        losses[norm] = start - run.forward(batch(0), "cross_entropy").result().metrics["loss:sum"]
        assert metrics["grad_norm"] > 1e-3  # what it was before

    assert losses[0.0] > 10 * abs(losses[1e-3])


BAD_DATA = {
    "a token outside the vocabulary": (
        types.Datum(
            model_input=types.ModelInput.from_ints([1, VOCABULARY]),
            loss_fn_inputs={"target_tokens": [1, 2], "weights": [1.0, 1.0]},
        ),
        "token 512 at position 1 is outside the vocabulary of 512",
    ),
    "a target outside the vocabulary": (datum(0, length=3, target_tokens=[1, 2, -1]), "target -1 at position 2"),
    "a weight that is not a number": (
        datum(0, length=3, weights=[1.0, NAN, 1.0]),
        "'weights': element .1. is",
    ),
    "an infinite weight": (datum(0, length=3, weights=[1.0, math.inf, 1.0]), "'weights': element .1. is"),
    "targets of another length": (datum(0, length=3, target_tokens=[1, 2]), "shape .2., but the model input has 3"),
    "weights of another shape": (datum(0, length=3, weights=[1.0]), "'weights' has shape .1., but 'target_tokens'"),
    "an input nobody knows": (datum(0, length=3, mood=torch.ones(3)), "takes no input 'mood'"),
    "no input at all": (
        types.Datum(model_input=types.ModelInput.from_ints([]), loss_fn_inputs={"target_tokens": [], "weights": []}),
        "there are no tokens",
    ),
}


@pytest.mark.parametrize("fault", BAD_DATA)
def test_a_bad_datum_fails_alone_and_is_named(service: tinker.ServiceClient, fault: str) -> None:
    bad, words = BAD_DATA[fault]
    run, undisturbed = create(service), create(service)

    run.forward_backward(batch(0), "cross_entropy")
    failed = run.forward_backward([datum(1), datum(2), bad], "cross_entropy")
    run.optim_step(ADAM)
    afterwards = train(run, 2, start=1)

    error = failure(failed)
    assert error.category == types.RequestErrorCategory.User
    with pytest.raises(AssertionError, match=f"datum 2\\b.*{words}"):
        raise AssertionError(error.message)
    step(undisturbed, batch(0))
    assert afterwards == train(undisturbed, 2, start=1)


def test_an_unknown_loss_fails_with_the_known_ones(service: tinker.ServiceClient) -> None:
    run = create(service)

    error = failure(run.forward_backward([datum(0)], "hinge"))  # type: ignore[arg-type]  # on purpose

    assert error.category == types.RequestErrorCategory.User
    assert "there is no loss 'hinge'; this server has cross_entropy" in error.message


def test_a_gradient_that_overflows_is_thrown_away(service: tinker.ServiceClient) -> None:
    run, undisturbed = create(service), create(service)

    error = failure(run.forward_backward([datum(0, weights=[3e38] * 16)], "cross_entropy"))

    assert error.category == types.RequestErrorCategory.User
    assert train(run, 2) == train(undisturbed, 2)


def test_two_hundred_queued_operations_keep_their_order(service: tinker.ServiceClient) -> None:
    pipelined, one_by_one = create(service), create(service)
    data = [[datum(number, length=6)] for number in range(100)]

    passes, steps = [], []
    for number in range(100):
        passes.append(pipelined.forward_backward(data[number], "cross_entropy"))
        steps.append(pipelined.optim_step(ADAM))
    outputs = [passed.result() for passed in passes]
    counts = [stepped.result().metrics["steps"] for stepped in steps]

    assert counts == list(range(1, 101))
    expected = [step(one_by_one, data[number]) for number in range(100)]
    assert [numbers(output) for output in outputs] == [numbers(output) for output in expected]


def test_a_large_batch_arrives_in_chunks_and_whole(service: tinker.ServiceClient) -> None:
    data = [datum(number, length=2) for number in range(1100)]  # the client cuts at 1024

    output = create(service).forward(data, "cross_entropy").result()

    assert len(output.loss_fn_outputs) == 1100
    again = create(service).forward(data[1090:], "cross_entropy").result()
    for given, expected in zip(numbers(output)[1090:], numbers(again), strict=True):
        assert given == pytest.approx(expected, abs=1e-5)


def test_concurrent_runs_give_the_numbers_they_give_alone(live: LiveServer, connect: Connect) -> None:
    def work(seed: int) -> list[Any]:
        run = create(connect(live), seed=seed, rank=2 << (seed % 3))
        return [train(run, 4, start=seed), train(run, 2, start=100 + seed)]

    alone = [work(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(4)))

    assert together == alone


def test_concurrent_runs_on_two_models_and_of_two_kinds(service: tinker.ServiceClient) -> None:
    def work(case: tuple[str, int]) -> list[Any]:
        return train(service.create_lora_training_client(base_model=case[0], rank=case[1], seed=3), 4)

    cases = [("tiny-qwen3", 0), ("tiny-qwen3", 4), ("tiny-llama", 4), ("tiny-llama", 0)]
    alone = list(map(work, cases))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, cases))

    assert together == alone


async def test_the_asynchronous_calls_do_the_same(live: LiveServer, connect: Connect) -> None:
    service = connect(live)
    expected = train(create(service), 1)

    run = await connect(live).create_lora_training_client_async(base_model=MODEL, rank=4, seed=1)
    passed = await run.forward_backward_async(batch(0), "cross_entropy")
    stepped = await run.optim_step_async(ADAM)
    await stepped
    output = await passed

    assert [(output.metrics["loss:sum"], numbers(output))] == expected


def test_a_repeated_step_is_taken_once(live: LiveServer, service: tinker.ServiceClient) -> None:
    run, other = create(service), create(service)
    for each in (run, other):
        step(each, batch(0))
        each.forward_backward(batch(1), "cross_entropy").result()
    run.optim_step(ADAM).result()
    body = {"model_id": run.model_id, "seq_id": 4, "adam_params": {"learning_rate": 1e-2}, "type": "optim_step"}

    with live.http() as http:
        ids = {http.post("optim_step", json=body).json()["request_id"] for _ in range(3)}
        ids.add(http.post("optim_step", json={**body, "adam_params": {"learning_rate": 9.0}}).json()["request_id"])
        answers = [http.post("retrieve_future", json={"request_id": request_id}).json() for request_id in ids]

    assert [answer["metrics"]["steps"] for answer in answers] == [2]
    other.optim_step(ADAM).result()
    assert train(run, 2, start=2) == train(other, 2, start=2)


def test_a_repeated_pass_adds_its_gradient_once(live: LiveServer, service: tinker.ServiceClient) -> None:
    run, other = create(service), create(service)
    body = {
        "model_id": run.model_id,
        "seq_id": 1,
        "forward_backward_input": {
            "data": [
                {
                    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
                    "loss_fn_inputs": {"target_tokens": {"data": [2, 3, 4], "dtype": "int64", "shape": [3]}},
                }
            ],
            "loss_fn": "cross_entropy",
        },
    }

    with live.http() as http:
        ids = [http.post("forward_backward", json=body).json()["request_id"] for _ in range(3)]
        http.post("forward_backward", json={**body, "model_id": other.model_id})
        norms = []
        for each in (run, other):
            step_body = {"model_id": each.model_id, "seq_id": 2, "adam_params": {}}
            request_id = http.post("optim_step", json=step_body).json()["request_id"]
            norms.append(http.post("retrieve_future", json={"request_id": request_id}).json()["metrics"]["grad_norm"])

    assert len(set(ids)) == 1
    assert norms[0] == norms[1]


def test_numbers_may_be_missing_and_come_late(live: LiveServer, service: tinker.ServiceClient) -> None:
    run = create(service)

    with live.http() as http:
        for seq_id in (50, 7, 51):
            body = {"model_id": run.model_id, "seq_id": seq_id, "adam_params": {}}
            request_id = http.post("optim_step", json=body).json()["request_id"]
            assert "metrics" in http.post("retrieve_future", json={"request_id": request_id}).json()


def test_a_retried_creation_makes_one_run(live: LiveServer, service: tinker.ServiceClient) -> None:
    body = {"session_id": service.holder.get_session_id(), "model_seq_id": 0, "base_model": MODEL}

    with live.http() as http:
        first = http.post("create_model", json=body).json()
        again = http.post("create_model", json=body).json()

    assert again == first
    assert first["model_id"] == f"{body['session_id']}:train:0"


def test_an_unloaded_run_says_so(live: LiveServer, service: tinker.ServiceClient) -> None:
    run = create(service)
    with live.http() as http:
        request_id = http.post("unload_model", json={"model_id": run.model_id}).json()["request_id"]
        assert http.post("retrieve_future", json={"request_id": request_id}).json()["model_id"] == run.model_id

    assert "was unloaded; resume it from a checkpoint" in failure(run.optim_step(ADAM)).message
