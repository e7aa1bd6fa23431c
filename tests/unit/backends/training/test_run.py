from __future__ import annotations

import pytest
import torch

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.failures import BadRequest
from support.backends.training import BATCH, STEP, bits
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
