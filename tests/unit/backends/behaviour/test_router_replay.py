"""Router replay: a trainer computes with the experts that a sampler chose, although rounding decides between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chockstone.backends.training.base_model import BaseModel, prepare_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.sampling.model import SampledModel
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.passes import Datum, Pass
from chockstone.wire.codecs.routing import Routing
from chockstone.wire.codecs.samples import SampledSequence, SampleRequest, SamplingParams
from support.sampling.making import finish as finish_samples
from support.sampling.making import result_of
from support.tiny_experts import tie_routers, tiny_experts
from support.tiny_models import finish, gradient, lora_run, tiny_tokenizer

PROMPT = np.arange(11, dtype=np.int32) * 7 % 97
FAMILIES = ["qwen3_moe", "mixtral", "gpt_oss"]


def tied_base(architecture: str, **options: str) -> BaseModel:
    model = tie_routers(tiny_experts(architecture))
    return prepare_base_model("tied", Path("tied"), model, tiny_tokenizer(), **options)  # type: ignore[arg-type]


def sample(run: TrainedRun) -> list[SampledSequence]:
    """Several samples of one prompt, each token computed in a batch of one position per sample."""
    sampled = SampledModel(run.base.model, run.base.tokenizer, max_context=64, records_routing=True)
    sampler = Sampler()
    request = SampleRequest(PROMPT, 6, SamplingParams(max_tokens=20, stops_at_eos=False, seed=4))
    sampler.add("it", sampled, run.adapter(), request, seed=1)
    return list(result_of(finish_samples(sampler)["it"]).sequences)


def train(run: TrainedRun, sequences: list[SampledSequence], routing: tuple[Routing | None, ...]) -> float:
    """The greatest difference between the log-probabilities of the trainer and of the sampler."""
    texts = [np.concatenate([PROMPT, sequence.tokens]) for sequence in sequences]
    data = tuple(Datum(text[:-1], {"target_tokens": text[1:].astype(np.int64)}) for text in texts)
    request = Pass("run", 1, data, "cross_entropy", {}, forward_only=False, routing=routing)
    result = finish(run.apply(request, {}, tokens_per_micro_batch=4096))
    return max(
        float(np.abs(trained[len(PROMPT) - 1 :] - sequence.logprobs).max())
        for trained, sequence in zip(result.logprobs, sequences, strict=True)
    )


@pytest.mark.parametrize("architecture", FAMILIES)
def test_near_ties_make_trainer_and_sampler_disagree_unless_the_routing_is_replayed(architecture: str) -> None:
    run = lora_run(tied_base(architecture))
    sequences = sample(run)
    recorded = tuple(sequence.routing for sequence in sequences)

    assert all(routing is not None and routing.shape == (len(PROMPT) + 19, 2, 2) for routing in recorded)
    assert train(run, sequences, ()) > 1e-2
    assert train(run, sequences, recorded) < 1e-4


def test_a_datum_without_a_record_is_trained_beside_others() -> None:
    run = lora_run(tied_base("qwen3_moe"))
    sequences = sample(run)[:3]
    recorded = [sequence.routing for sequence in sequences]

    assert train(run, sequences, (recorded[0], None, recorded[2])) > 1e-2
    assert train(run, [sequences[0], sequences[2]], (recorded[0], recorded[2])) < 1e-4


def test_layers_that_are_computed_again_have_the_same_experts() -> None:
    gradients = []
    for mode in ("on", "off"):
        run = lora_run(tied_base("qwen3_moe", activation_checkpointing=mode))
        sequences = sample(run)
        train(run, sequences, tuple(sequence.routing for sequence in sequences))
        gradients.append(gradient(run))

    assert all(torch.equal(value, gradients[1][name]) for name, value in gradients[0].items())


def test_nothing_is_recorded_unless_it_is_asked_for() -> None:
    run = lora_run(tied_base("qwen3_moe"))
    sampler = Sampler()
    sampled = SampledModel(run.base.model, run.base.tokenizer, max_context=64)
    sampler.add("it", sampled, None, SampleRequest(PROMPT, 1, SamplingParams(max_tokens=4)), seed=1)

    assert result_of(finish_samples(sampler)["it"]).sequences[0].routing is None
