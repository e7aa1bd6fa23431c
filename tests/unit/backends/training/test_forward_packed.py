"""Packed micro-batches give the numbers of padded ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training import forward
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.passes import Datum, PassResult
from support.backends.fsdp.jobs import INPUTS
from support.backends.fsdp.jobs import apply as apply_any
from support.backends.training import bits
from support.tiny_models import assert_same_gradient, begin_alike, datum, gradient, lora_run, tiny_base

LENGTHS = (24, 9, 30, 21, 4, 17, 22, 40)


def batch(loss: str) -> list[Datum]:
    """Some begin alike, one of them is another's beginning, and one is there twice."""
    data = [datum(length, seed=length, inputs=INPUTS[loss]) for length in LENGTHS]
    family = begin_alike(data[:1] + data[2:4], 20)
    beginning = Datum(family[1].tokens[:20], {name: values[:20] for name, values in family[1].inputs.items()})
    again = Datum(family[0].tokens, {**data[0].inputs, "target_tokens": family[0].inputs["target_tokens"]})
    return [*family, data[1], beginning, *data[4:], again]


def run_of(base: BaseModel, rank: int) -> TrainedRun:
    return lora_run(base, rank=rank) if rank else TrainedRun(base, RunSpec(rank=0, seed=0))


def both(loss: str, *, rank: int = 4, budget: int = 90, **changes: Any) -> list[tuple[TrainedRun, PassResult]]:
    base = tiny_base(**changes)
    assert base.packs
    runs = [run_of(each, rank) for each in (base, replace(base, packs=False))]
    return [(run, apply_any(run, batch(loss), loss, budget=budget)) for run in runs]


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("loss", INPUTS)
def test_losses_and_gradients_are_those_of_padded_batches(loss: str, rank: int) -> None:
    (packed, found), (padded, expected) = both(loss, rank=rank)

    for one, other in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(found.elementwise_loss, expected.elementwise_loss, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-5, abs=1e-5)
    assert_same_gradient(gradient(packed), gradient(padded))


@pytest.mark.parametrize("loss", ["ppo", "gspo"])
def test_logits_in_many_chunks_give_the_same(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_LOGITS_BYTES", 4 * 97 * 7)

    (packed, found), (padded, expected) = both(loss)

    assert found.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    assert_same_gradient(gradient(packed), gradient(padded))


@pytest.mark.parametrize("rank", [4, 0])
def test_the_same_operation_has_the_same_bits_and_activations_may_be_recomputed(rank: int) -> None:
    bases = [tiny_base() for _ in range(3)]
    bases[2].activations._mode = "on"

    found = []
    for base in bases:
        run = run_of(base, rank)
        result = apply_any(run, batch("ppo"), "ppo", budget=90)
        found.append((result.metrics, [each.tobytes() for each in result.logprobs], bits(run)))

    assert found[0] == found[1] == found[2]


def test_shared_beginnings_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_base()
    run = lora_run(base)
    rows: list[int] = []
    embed = base.model.get_input_embeddings()
    monkeypatch.setattr(embed, "forward", lambda ids, whole=embed.forward: rows.append(ids.numel()) or whole(ids))
    data = begin_alike([datum(24, seed=seed, inputs=("weights",)) for seed in range(6)], 20)

    apply_any(run, data, "cross_entropy", budget=1000)

    assert rows[-1:] == [20 + 6 * 4]  # the passes before it measure activations


def test_a_datum_alone_is_not_packed_and_has_the_bits_of_before() -> None:
    base = tiny_base()
    runs = [lora_run(each) for each in (base, replace(base, packs=False))]

    results = [apply_any(run, [datum(20, inputs=("weights",))], "cross_entropy", budget=90) for run in runs]

    assert results[0].logprobs[0].tobytes() == results[1].logprobs[0].tobytes()
    assert torch.equal(*(run.state()["gradient"] for run in runs))
