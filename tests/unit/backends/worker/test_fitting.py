"""Passes that run out of memory: computed again in smaller pieces, or refused, and nothing is left behind."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.activations import Activations
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker import fitting
from chockstone.backends.worker.fitting import FittedPass, apply_fitting, check_fits
from chockstone.wire.codecs.passes import Datum
from chockstone.wire.failures import BadRequest, ServerFailure
from support.backends.training import BATCH, STEP, bits
from support.tiny_models import apply, datum, finish, lora_run, request, tiny_base


class Allocator:
    """Refuses micro-batches of more than so many tokens, padding included: in the forward or in the backward pass."""

    def __init__(self, base: BaseModel, *, fits: int, phase: str) -> None:
        self.refused: list[int] = []
        self._backbone = base.backbone
        self._fits = fits
        self._phase = phase

    def __call__(self, input_ids: torch.Tensor, **options: Any) -> Any:
        output = self._backbone(input_ids=input_ids, **options)
        if input_ids.numel() > self._fits:
            if self._phase == "forward" or not output.last_hidden_state.requires_grad:
                self._refuse(input_ids.numel())
            output.last_hidden_state.register_hook(lambda _: self._refuse(input_ids.numel()))
        return output

    def _refuse(self, tokens: int) -> None:
        self.refused.append(tokens)
        raise torch.OutOfMemoryError("CUDA out of memory")


def limited(fits: int, *, phase: str = "forward", mode: Any = "off") -> tuple[TrainedRun, Allocator]:
    base = tiny_base()
    allocator = Allocator(base, fits=fits, phase=phase)
    limited_base = replace(base, backbone=allocator, activations=Activations(base.model, mode=mode))
    return lora_run(limited_base), allocator


def fit(run: TrainedRun, *data: Datum, budget: int = 80, **options: Any) -> FittedPass:
    return finish(apply_fitting(run, request(*data), {}, tokens_per_micro_batch=budget, **options))


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_pass_that_does_not_fit_has_the_bits_of_the_smaller_micro_batches(phase: str) -> None:
    (run, allocator), expected = limited(40, phase=phase), lora_run(tiny_base())

    fitted = fit(run, *BATCH)

    assert allocator.refused, "the allocator was asked for too much"
    assert fitted.tokens_per_micro_batch is not None
    result = apply(expected, *BATCH, budget=fitted.tokens_per_micro_batch)
    assert bits(run) == bits(expected)
    assert fitted.result.metrics == result.metrics
    assert [a.tobytes() for a in fitted.result.logprobs] == [a.tobytes() for a in result.logprobs]


def test_a_replay_with_the_size_of_the_first_time_has_its_bits() -> None:
    (run, _), again = limited(40), lora_run(tiny_base())
    fitted = fit(run, *BATCH)

    replayed = fit(again, *BATCH, budget=fitted.tokens_per_micro_batch or 0, is_replay=True)

    assert bits(again) == bits(run)
    assert replayed.tokens_per_micro_batch is None


def test_a_pass_that_fits_keeps_its_size() -> None:
    run, allocator = limited(1000)

    assert fit(run, *BATCH).tokens_per_micro_batch is None
    assert not allocator.refused


def test_the_same_failures_lead_to_the_same_size() -> None:
    sizes = {fit(limited(40)[0], *BATCH).tokens_per_micro_batch for _ in range(2)}

    assert len(sizes) == 1


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_datum_that_does_not_fit_alone_is_refused_and_the_run_is_unharmed(phase: str) -> None:
    (run, _), expected = limited(20, phase=phase), lora_run(tiny_base())
    for each in (run, expected):
        apply(each, BATCH[1])  # a gradient is accumulated
    before = bits(run)

    with pytest.raises(BadRequest, match=r"datum 5 does not fit into memory: it has 30 tokens"):
        fit(run, *BATCH)

    assert bits(run) == before
    for each in (run, expected):
        apply(each, BATCH[2])
        each.optim_step(STEP)
    assert bits(run) == bits(expected)


def test_a_replay_never_chooses_other_micro_batches() -> None:
    run, _ = limited(40)
    before = bits(run)

    with pytest.raises(ServerFailure, match="the replay of a pass ran out of memory"):
        fit(run, *BATCH, is_replay=True)

    assert bits(run) == before


def test_layers_recompute_before_micro_batches_are_halved() -> None:
    run, allocator = limited(1000, mode="auto")
    attempts = []

    def backbone(**options: Any) -> Any:
        attempts.append(any(layer.recomputes for layer in run.base.activations._layers))
        if options["input_ids"].shape[1] > 32 and not attempts[-1]:
            raise torch.OutOfMemoryError
        return allocator(**options)

    object.__setattr__(run.base, "backbone", backbone)
    data = [datum(40, seed=seed) for seed in range(2)]

    fitted = fit(run, *data, budget=100)

    assert fitted.tokens_per_micro_batch is None, "the bits are those of the first choice"
    assert attempts[-1] is True
    expected = lora_run(tiny_base())
    apply(expected, *data, budget=100)
    assert bits(run) == bits(expected)


def test_nothing_of_a_failed_try_stays_in_memory() -> None:
    run, allocator = limited(40)
    kept = []
    backbone = allocator._backbone

    def remembering(**options: Any) -> Any:
        output = backbone(**options)
        if options["input_ids"].numel() > 40:
            kept.append(weakref.ref(output.last_hidden_state))
        else:
            assert not any(each() is not None for each in kept), "the failed try is still referred to"
        return output

    allocator._backbone = remembering

    fit(run, *BATCH)

    assert kept


def test_a_run_that_does_not_fit_is_checked_again_when_memory_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    base, spec, free = tiny_base(), RunSpec(rank=4, seed=0), [1000]
    monkeypatch.setattr(fitting, "available_bytes", lambda _: free[0])

    with pytest.raises(BadRequest):
        check_fits(base, spec, [], give_back=lambda: None)
    check_fits(base, spec, [], give_back=lambda: free.append(free.pop() + (1 << 40)))
