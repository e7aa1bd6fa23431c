from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.checkpoints import Checkpointer
from chockstone.wire.failures import BadRequest
from support.tiny_models import (
    Reference,
    apply,
    assert_same_gradient,
    datum,
    finish,
    gradient,
    lora_run,
    request,
    tiny_base,
    tiny_model,
)

BATCH = tuple(datum(n, seed=n, inputs=("weights",)) for n in (9, 4, 17, 17, 2, 30))
STEP = OptimStep(learning_rate=0.01, weight_decay=0.1, grad_clip_norm=1.0)


def bits(run: TrainedRun) -> list[Any]:
    """Everything a run holds, as bytes."""
    state = run.state()
    tensors = [*state["weights"].values(), *state["optimizer"].values(), state["gradient"]]
    return [t.numpy().tobytes() if isinstance(t, torch.Tensor) else t for t in tensors]


def train(run: TrainedRun, *, steps: int, first: int = 0) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        losses.append(apply(run, datum(11, seed=step), datum(6, seed=step + 100)).metrics["loss:sum"])
        losses.append(apply(run, datum(8, seed=step + 200)).metrics["loss:sum"])
        run.optim_step(STEP)
    return losses


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_gradients_are_those_of_plain_pytorch(architecture: str, tied: bool, rank: int) -> None:
    base = tiny_base(architecture, tied=tied)
    run = lora_run(base, rank=rank) if rank else TrainedRun(base, RunSpec(rank=0, seed=0))
    reference = Reference(tiny_model(architecture, tied=tied), run)

    result = apply(run, *BATCH, budget=40)

    loss, expected = reference.backward(BATCH, lambda logprobs, inputs: -inputs["weights"] * logprobs)
    assert result.metrics["loss:sum"] == pytest.approx(loss, rel=1e-5)
    assert_same_gradient(gradient(run), expected)


@pytest.mark.parametrize("budget", [1, 30, 64, 10_000])
def test_what_shares_a_micro_batch_does_not_change_the_numbers(budget: int) -> None:
    base = tiny_base()
    alone, together = lora_run(base), lora_run(base)

    expected = [apply(alone, one).logprobs[0] for one in BATCH]
    actual = apply(together, *BATCH, budget=budget).logprobs

    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert_same_gradient(gradient(together), gradient(alone))


def test_datums_with_different_numbers_of_targets_may_share_a_request() -> None:
    run = lora_run(tiny_base())
    data = (datum(5, seed=1), datum(4, targets=3, seed=2), datum(6, targets=1, seed=3), datum(3, targets=3, seed=4))

    result = apply(run, *data)

    assert [logprobs.shape for logprobs in result.logprobs] == [(5,), (4, 3), (6, 1), (3, 3)]
    np.testing.assert_allclose(result.logprobs[3], apply(run, data[3]).logprobs[0], rtol=1e-5, atol=1e-5)


def test_the_same_operation_gives_the_same_bits_whatever_came_before() -> None:
    base = tiny_base()
    fresh, busy = lora_run(base), lora_run(base)
    apply(busy, *BATCH[:3], loss="cross_entropy", forward_only=True)
    apply(lora_run(base, seed=5), *BATCH)

    first, second = apply(fresh, *BATCH), apply(busy, *BATCH)

    assert bits(fresh) == bits(busy)
    assert [a.tobytes() for a in first.logprobs] == [a.tobytes() for a in second.logprobs]
    assert first.metrics == second.metrics


def test_forward_only_returns_the_same_bits_and_touches_no_gradient() -> None:
    run = lora_run(tiny_base())
    before = bits(run)

    forward = apply(run, *BATCH, forward_only=True)

    assert bits(run) == before
    backward = apply(run, *BATCH)
    assert [a.tobytes() for a in forward.logprobs] == [a.tobytes() for a in backward.logprobs]


def test_passes_add_up_until_a_step() -> None:
    base = tiny_base()
    run, other = lora_run(base), lora_run(base)
    apply(run, BATCH[0])
    first = run.state()["gradient"].clone()
    apply(other, BATCH[1])

    apply(run, BATCH[1])

    assert torch.equal(run.state()["gradient"], first + other.state()["gradient"])
    assert run.optim_step(STEP)["steps"] == 1
    assert run.state()["gradient"] is None


@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("ending", ["close", "failure"])
def test_a_pass_that_does_not_end_well_leaves_the_run_bit_for_bit(
    ending: str, accumulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lora_run(tiny_base())
    if accumulated:
        apply(run, *BATCH[:2])
    before = bits(run)

    passing = run.apply(request(*BATCH), {}, tokens_per_micro_batch=20)
    next(passing)
    next(passing)
    if ending == "close":
        passing.close()
    else:
        monkeypatch.setattr("chockstone.backends.training.forward.torch.log_softmax", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(passing)
        monkeypatch.undo()

    assert bits(run) == before
    assert all(layer.active is None for layer in run.base.layers.values())
    apply(run, *BATCH)  # and it goes on


@pytest.mark.parametrize("rank", [4, 0])
def test_runs_at_once_give_the_numbers_they_give_alone(rank: int) -> None:
    alone = [TrainedRun(tiny_base(), RunSpec(rank=rank, seed=seed)) for seed in (1, 2)]
    base = tiny_base()
    together = [TrainedRun(base, RunSpec(rank=rank, seed=seed)) for seed in (1, 2)]
    for run in alone:
        for _ in range(3):
            finish(run.apply(request(*BATCH), {}, tokens_per_micro_batch=20))
            run.optim_step(STEP)

    for _ in range(3):
        passes = [run.apply(request(*BATCH), {}, tokens_per_micro_batch=20) for run in together]
        while passes:
            for one in list(passes):
                try:
                    next(one)
                except StopIteration:
                    passes.remove(one)
        for run in together:
            run.optim_step(STEP)

    assert [bits(run) for run in together] == [bits(run) for run in alone]


def test_a_second_run_adds_no_second_base_model() -> None:
    base = tiny_base()
    run = lora_run(base)
    apply(run, *BATCH)
    run.optim_step(STEP)

    state = run.state()

    own = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in state["weights"].values()}
    assert sum(own.values()) == 4 * run.parameter_count
    assert not {parameter.data_ptr() for parameter in base.model.parameters()} & own.keys()
    assert not any(parameter.requires_grad for parameter in base.model.parameters())


def test_training_every_weight_follows_a_plain_loop_and_leaves_the_base_alone() -> None:
    base = tiny_base(tied=True)
    original = {name: parameter.clone() for name, parameter in base.model.named_parameters()}
    run = TrainedRun(base, RunSpec(rank=0, seed=0))
    model = tiny_model(tied=True)
    plain = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), eps=1e-8)

    for seed in range(4):
        one = datum(12, seed=seed)
        apply(run, one)
        run.optim_step(OptimStep(learning_rate=0.01, weight_decay=0.01, eps=1e-8))
        logits = model(torch.from_numpy(one.tokens.astype(np.int64))[None]).logits[0]
        torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(one.inputs["target_tokens"]), reduction="sum"
        ).backward()
        plain.step()
        plain.zero_grad()

    copy: Any = run.full_copy().model
    for (name, ours), theirs in zip(copy.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight
    assert all(torch.equal(original[name], now) for name, now in base.model.named_parameters())


def test_a_copy_does_not_change_when_training_goes_on() -> None:
    run, full = lora_run(tiny_base()), TrainedRun(tiny_base(), RunSpec(rank=0, seed=0))
    adapter, copy = run.adapter(), full.full_copy().model
    before = [*(layer.up.clone() for layer in adapter.layers.values()), *(p.clone() for p in copy.parameters())]

    train(run, steps=1)
    train(full, steps=1)

    after = [*(layer.up for layer in adapter.layers.values()), *copy.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(BadRequest, match="no adapter"):
        full.adapter()
    with pytest.raises(BadRequest, match="no model of its own"):
        run.full_copy()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rank", [4, 0])
def test_a_base_of_half_precision_trains_in_float32(rank: int, dtype: torch.dtype) -> None:
    run = TrainedRun(tiny_base(dtype=dtype), RunSpec(rank=rank, seed=0))

    losses = [apply(run, *BATCH[:3]).metrics["loss:sum"]]
    for _ in range(8):
        run.optim_step(OptimStep(learning_rate=0.01))
        losses.append(apply(run, *BATCH[:3]).metrics["loss:sum"])

    assert losses[-1] < losses[0]
    assert {weight.dtype for weight in run.state()["weights"].values()} == {torch.float32}


def test_a_step_without_gradient_says_so_and_changes_nothing() -> None:
    run = lora_run(tiny_base())
    before = bits(run)

    metrics = run.optim_step(STEP)

    assert metrics == {"skipped_no_gradient": 1.0, "steps": 0.0}
    assert bits(run) == before


def test_a_step_for_which_there_is_no_memory_leaves_the_run_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    run = lora_run(tiny_base())
    apply(run, datum(8, seed=1))
    before = bits(run)

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros_like", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            run.optim_step(STEP)

    assert bits(run) == before


def test_a_step_of_another_family_is_refused_and_keeps_the_gradient() -> None:
    run = lora_run(tiny_base())
    apply(run, BATCH[0])
    before = bits(run)

    with pytest.raises(BadRequest, match="created for 'adamw', so it cannot step with 'sgd'"):
        run.optim_step(OptimStep(family="sgd"))

    assert bits(run) == before


def test_weights_that_diverged_fail_the_pass_and_leave_no_gradient() -> None:
    run = lora_run(tiny_base())
    apply(run, BATCH[0])
    run.optim_step(OptimStep(learning_rate=1e30))

    with pytest.raises(BadRequest, match="datum 2: the model's log-probabilities are not finite"):
        apply(run, *BATCH[:3])

    assert run.state()["gradient"] is None


@pytest.mark.parametrize(("rank", "optimizer"), [(4, "adamw"), (4, "sgd"), (0, "adamw")])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, rank: int, optimizer: str) -> None:
    spec = RunSpec(rank=rank, seed=3, optimizer=optimizer)
    step = OptimStep(family=optimizer, learning_rate=0.01, momentum=0.9)
    run = TrainedRun(tiny_base(), spec)
    apply(run, BATCH[0])
    run.optim_step(step)
    apply(run, BATCH[1])  # not yet applied
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(run.state(), step=run.steps).result()
        state = checkpointer.load()

    resumed = TrainedRun(tiny_base(), RunSpec(rank=rank, seed=99, optimizer=optimizer))
    resumed.load(state, with_optimizer=True)

    assert bits(resumed) == bits(run)
    for each in (run, resumed):
        apply(each, BATCH[2])
        each.optim_step(step)
    assert bits(resumed) == bits(run)


def test_loading_without_optimizer_starts_it_afresh() -> None:
    run, other = lora_run(tiny_base()), lora_run(tiny_base(), seed=8)
    train(run, steps=1)
    train(other, steps=2)
    apply(other, BATCH[0])

    other.load(run.state(), with_optimizer=False)

    assert other.steps == 0 and other.state()["gradient"] is None
    assert bits(other)[: len(run.state()["weights"])] == bits(run)[: len(run.state()["weights"])]


def _without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda base: lora_run(base, rank=8).state(), "has rank 8, the run 4"),
        (lambda base: lora_run(base, train_mlp=False).state(), "train different layers"),
        (
            lambda base: TrainedRun(base, RunSpec(rank=4, seed=0, optimizer="sgd")).state(),
            "optimizer is 'sgd', the run's 'adamw'",
        ),
        (lambda base: _without(lora_run(base).state(), "weights"), "no training state"),
        (lambda base: _without(lora_run(base).state(), "optimizer"), "no optimizer"),
        (lambda base: {"model": {}}, "not a run's training state"),
        (lambda base: lora_run(base).state() | {"gradient": torch.zeros(3)}, "load it without optimizer"),
        (lambda base: lora_run(base).state() | {"optimizer": {"steps": 1}}, "load it without optimizer"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_nothing_changed(change: Any, message: str) -> None:
    base: BaseModel = tiny_base()
    run = lora_run(base)
    train(run, steps=1)
    before = bits(run)

    with pytest.raises(BadRequest, match=message):
        run.load(change(base), with_optimizer=True)

    assert bits(run) == before
