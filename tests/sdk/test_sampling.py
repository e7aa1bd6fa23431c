"""Samples through the SDK: tokens, logprobs and stops, held against plain transformers on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tinker import types
from transformers import AutoTokenizer

from sdk.making import VOCABULARY, tokens
from support.live import LiveServer
from support.plain_model import PlainModel

TOLERANCE = 1e-4
PROMPT = tokens(7, 24)


@dataclass
class Side:
    """A base model twice: behind the server, and here."""

    sampler: tinker.SamplingClient
    plain: PlainModel
    directory: Path

    def ask(self, prompt: list[int] = PROMPT, *, num_samples: int = 1, **options: Any) -> types.SampleResponse:
        asked = {name: options.pop(name) for name in list(options) if name in types.SamplingParams.model_fields}
        params = types.SamplingParams(**{"max_tokens": 1, **asked})
        return self.sampler.sample(types.ModelInput.from_ints(prompt), num_samples, params, **options).result()

    def logprobs(self, text: list[int], temperature: float = 1.0) -> torch.Tensor:
        """[T, V]; row i is of what follows position i."""
        with torch.inference_mode():
            return torch.log_softmax(self.plain.model(torch.tensor([text])).logits[0] / temperature, dim=-1)

    def continuation(self, sequence: types.SampledSequence, temperature: float = 1.0) -> torch.Tensor:
        """The plain model's [tokens, V] at the positions from which the sequence was sampled."""
        return self.logprobs(PROMPT + sequence.tokens, temperature)[len(PROMPT) - 1 : -1]


@pytest.fixture(scope="module", params=["tiny-qwen3", "tiny-llama"])
def side(request: pytest.FixtureRequest, live: LiveServer, models: dict[str, Path]) -> Iterator[Side]:
    service = tinker.ServiceClient(base_url=live.url, api_key=live.key)
    directory = models[request.param]
    yield Side(service.create_sampling_client(base_model=request.param), PlainModel(directory), directory)
    service.close("success").result()


def of_tokens(logprobs_TV: torch.Tensor, chosen: list[int]) -> torch.Tensor:
    return logprobs_TV.gather(1, torch.tensor(chosen)[:, None])[:, 0]


def assert_close(given: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(given), expected, atol=TOLERANCE, rtol=0)


def test_temperature_zero_is_transformers_greedy(side: Side) -> None:
    expected = side.plain.model.generate(
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        do_sample=False, max_new_tokens=32, eos_token_id=None,
    )  # fmt: skip

    [sequence] = side.ask(max_tokens=32, temperature=0.0, stop=[]).sequences

    assert sequence.tokens == expected[0, len(PROMPT) :].tolist()
    assert sequence.stop_reason == "length"
    assert_close(sequence.logprobs, of_tokens(side.continuation(sequence), sequence.tokens))


def test_every_sample_has_its_own_id_tokens_and_logprobs(side: Side) -> None:
    sequences = side.ask(num_samples=5, max_tokens=12, stop=[]).sequences

    assert [len(sequence.tokens) for sequence in sequences] == [12] * 5
    assert len({sequence.sequence_id for sequence in sequences}) == 5
    assert len({tuple(sequence.tokens) for sequence in sequences}) == 5
    for sequence in sequences:
        assert_close(sequence.logprobs, of_tokens(side.continuation(sequence), sequence.tokens))


def test_logprobs_are_those_of_the_temperature_sampled_at(side: Side) -> None:
    [sequence] = side.ask(max_tokens=16, temperature=0.6, stop=[]).sequences

    assert_close(sequence.logprobs, of_tokens(side.continuation(sequence, temperature=0.6), sequence.tokens))


def test_a_seed_gives_the_same_tokens_whatever_else_is_sampled(side: Side) -> None:
    alone = side.ask(num_samples=3, max_tokens=16, seed=5, stop=[]).sequences
    others = [
        side.sampler.sample(types.ModelInput.from_ints(tokens(n)), 2, types.SamplingParams(max_tokens=40))
        for n in range(8)
    ]
    again = side.ask(num_samples=3, max_tokens=16, seed=5, stop=[]).sequences
    different = side.ask(num_samples=3, max_tokens=16, seed=6, stop=[]).sequences

    assert [one.tokens for one in again] == [one.tokens for one in alone]
    assert [one.tokens for one in different] != [one.tokens for one in alone]
    assert all(other.result().sequences for other in others)


def test_requests_without_a_seed_differ(side: Side) -> None:
    assert side.ask(max_tokens=16, stop=[]).sequences[0].tokens != side.ask(max_tokens=16, stop=[]).sequences[0].tokens


def test_top_k_takes_from_the_k_most_likely(side: Side) -> None:
    sequences = side.ask(num_samples=8, max_tokens=12, top_k=3, seed=1, stop=[]).sequences

    ranks = [
        int((row > row[token]).sum())
        for sequence in sequences
        for row, token in zip(side.continuation(sequence), sequence.tokens, strict=True)
    ]
    assert max(ranks) == 2, "of 96 tokens one is the third"


def test_top_p_takes_from_the_smallest_set_that_holds_it(side: Side) -> None:
    sequences = side.ask(num_samples=8, max_tokens=12, top_p=0.2, seed=1, stop=[]).sequences

    above = [
        float(row.exp()[row > row[token]].sum())
        for sequence in sequences
        for row, token in zip(side.continuation(sequence), sequence.tokens, strict=True)
    ]
    assert max(above) < 0.2 + TOLERANCE
    assert max(above) > 0.1, "the set is used to its end"


def test_top_k_one_is_greedy(side: Side) -> None:
    greedy = side.ask(max_tokens=12, temperature=0.0, stop=[]).sequences[0]

    assert side.ask(max_tokens=12, top_k=1, stop=[]).sequences[0].tokens == greedy.tokens


def test_a_stop_token_ends_the_sample_and_is_its_last(side: Side) -> None:
    whole = side.ask(max_tokens=24, seed=3, stop=[]).sequences[0].tokens
    stop = whole[10]
    end = whole.index(stop) + 1

    [stopped] = side.ask(max_tokens=24, seed=3, stop=[stop, (stop + 1) % VOCABULARY]).sequences

    assert stopped.stop_reason == "stop"
    assert stopped.tokens == whole[: len(stopped.tokens)]
    assert len(stopped.tokens) <= end
    assert stopped.tokens[-1] in (stop, (stop + 1) % VOCABULARY)
    assert len(stopped.logprobs or []) == len(stopped.tokens)


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_sample_with_the_token_that_completes_it(side: Side, as_list: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(side.directory)
    whole = side.ask(max_tokens=60, seed=4, stop=[]).sequences[0].tokens
    end = next(n for n in range(20, 60) if (text := tokenizer.decode(whole[n - 2 : n])).isascii() and text.strip())
    stop = tokenizer.decode(whole[end - 2 : end])  # of two tokens
    first = next(n for n in range(1, 61) if stop in tokenizer.decode(whole[:n]))

    [stopped] = side.ask(max_tokens=60, seed=4, stop=[stop, "never this"] if as_list else stop).sequences

    assert stopped.stop_reason == "stop"
    assert stopped.tokens == whole[:first]


@pytest.mark.parametrize(
    "stop", [None, "never this", ["\n\nnever this", "nor this"], [5]], ids=["none", "text", "texts", "token"]
)
def test_an_end_token_ends_a_sample_beside_other_stops_and_with_an_empty_list_it_does_not(
    side: Side, stop: str | list[str] | list[int] | None
) -> None:
    ends = side.plain.model.generation_config.eos_token_id
    ends = {*(ends if isinstance(ends, list) else [ends]), *([5] if stop == [5] else [])}
    options: dict[str, Any] = {"num_samples": 64, "max_tokens": 64, "seed": 2}

    free = [sequence.tokens for sequence in side.ask(**options, stop=[]).sequences]
    ended = side.ask(**options, stop=stop).sequences

    assert {len(text) for text in free} == {64}
    cut = [text[: next((n for n, token in enumerate(text, 1) if token in ends), 64)] for text in free]
    assert [sequence.tokens for sequence in ended] == cut
    assert {sequence.stop_reason for sequence in ended} == {"stop", "length"}
    for sequence in ended:
        assert (sequence.stop_reason == "stop") == (sequence.tokens[-1] in ends)


def test_without_max_tokens_a_sample_goes_on_to_its_end(side: Side) -> None:
    [sequence] = side.ask(max_tokens=None, seed=1).sequences

    ends = side.plain.model.generation_config.eos_token_id
    assert sequence.stop_reason == "stop"
    assert sequence.tokens[-1] in (ends if isinstance(ends, list) else [ends])


def test_without_max_tokens_and_stops_a_sample_goes_on_until_the_context_is_full(side: Side) -> None:
    context = side.plain.model.config.max_position_embeddings

    [sequence] = side.ask(tokens(1, context - 10), max_tokens=None, stop=[]).sequences

    assert sequence.stop_reason == "length"
    assert len(sequence.tokens) == 10


def test_logprobs_of_a_prompt_are_transformers(side: Side) -> None:
    for length in (2, 17, 300):
        prompt = tokens(length, length)

        first, *rest = side.sampler.compute_logprobs(types.ModelInput.from_ints(prompt)).result()

        assert first is None
        assert_close(rest, of_tokens(side.logprobs(prompt)[:-1], prompt[1:]))


def test_a_prompt_of_one_token_has_nothing_to_score(side: Side) -> None:
    assert side.sampler.compute_logprobs(types.ModelInput.from_ints([5])).result() == [None]
    assert len(side.ask([5], max_tokens=3, stop=[]).sequences[0].tokens) == 3


def test_only_the_last_n_are_scored(side: Side) -> None:
    whole = side.sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()
    last = side.sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT), prompt_logprobs_last_n=5).result()
    both = side.ask(include_prompt_logprobs=True, prompt_logprobs_last_n=5, topk_prompt_logprobs=2)

    assert last[:-5] == [None] * (len(PROMPT) - 5)
    assert_close(last[-5:], torch.tensor(whole[-5:]))
    assert both.topk_prompt_logprobs is not None
    assert [row is None for row in both.topk_prompt_logprobs] == [logprob is None for logprob in last]


def test_the_most_likely_tokens_of_each_prompt_position(side: Side) -> None:
    response = side.ask(include_prompt_logprobs=True, topk_prompt_logprobs=4)

    best = side.logprobs(PROMPT)[:-1].topk(4)
    assert response.topk_prompt_logprobs is not None
    assert response.topk_prompt_logprobs[0] is None
    rows = response.topk_prompt_logprobs[1:]
    assert_close([[logprob for _, logprob in row or []] for row in rows], best.values)
    assert [[token for token, _ in row or []] for row in rows] == best.indices.tolist()


def test_the_most_likely_tokens_of_a_prompt_come_with_its_own_logprobs(side: Side) -> None:
    asked, implied = (side.ask(include_prompt_logprobs=flag, topk_prompt_logprobs=2) for flag in (True, False))

    assert implied.prompt_logprobs is not None
    assert implied.prompt_logprobs == asked.prompt_logprobs
    assert implied.topk_prompt_logprobs == asked.topk_prompt_logprobs
    assert side.ask().prompt_logprobs is None


def test_the_most_likely_tokens_of_each_sampled_position(side: Side) -> None:
    for sequence in side.ask(num_samples=2, max_tokens=6, topk_sample_logprobs=3, stop=[]).sequences:
        best = side.continuation(sequence).topk(3)

        assert sequence.topk_logprobs is not None
        assert_close([[logprob for _, logprob in row or []] for row in sequence.topk_logprobs], best.values)
        assert [[token for token, _ in row or []] for row in sequence.topk_logprobs] == best.indices.tolist()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_logprobs_of_named_tokens(side: Side, is_sparse: bool) -> None:
    targets = torch.full((len(PROMPT) - 1, 3), -1)
    targets[:, 0] = torch.tensor(PROMPT[1:])
    targets[4] = torch.tensor([9, -1, 11])
    targets[6:9] = -1
    make = types.TensorData.from_torch_sparse if is_sparse else types.TensorData.from_torch
    options = {"pad_value": -1} if is_sparse else {}

    answer = side.ask(target_prompt_logprobs=make(targets, **options)).target_prompt_logprobs

    assert answer is not None
    assert (answer.sparse_crow_indices is not None) == is_sparse
    expected = side.logprobs(PROMPT)[:-1].gather(1, targets.clamp(min=0))
    assert_close(answer.to_torch().to_dense(), torch.where(targets >= 0, expected, 0.0))


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_alternatives_are_drawn_at_each_prompt_position(side: Side, temperature: float) -> None:
    drawn = side.ask(prompt_alt_tokens_k=200, temperature=temperature).prompt_alt_tokens

    assert drawn is not None
    chosen = drawn.tokens.to_torch()
    logprobs = side.logprobs(PROMPT)[:-1]
    assert chosen.shape == (len(PROMPT) - 1, 200)
    assert_close(drawn.logprobs.to_torch(), logprobs.gather(1, chosen))
    drawn_from = side.logprobs(PROMPT, temperature)[:-1].exp()
    expected = float((drawn_from * logprobs).sum(-1).mean())
    assert float(drawn.logprobs.to_torch().mean()) == pytest.approx(expected, abs=0.05)
    assert any(len(set(row)) < 200 for row in chosen.tolist()), "with replacement"


def test_alternatives_at_temperature_zero_are_all_the_most_likely_token(side: Side) -> None:
    drawn = side.ask(prompt_alt_tokens_k=2, temperature=0.0).prompt_alt_tokens

    assert drawn is not None
    best = side.logprobs(PROMPT)[:-1].argmax(-1)
    assert drawn.tokens.to_torch().tolist() == [[token] * 2 for token in best.tolist()]


def test_all_questions_can_be_asked_at_once(side: Side) -> None:
    targets = types.TensorData.from_torch(torch.tensor(PROMPT[1:])[:, None])

    response = side.ask(
        num_samples=3, max_tokens=4, include_prompt_logprobs=True, topk_prompt_logprobs=1, topk_sample_logprobs=1,
        target_prompt_logprobs=targets, prompt_alt_tokens_k=2,
    )  # fmt: skip

    assert response.prompt_logprobs is not None and response.target_prompt_logprobs is not None
    assert_close(response.prompt_logprobs[1:], response.target_prompt_logprobs.to_torch()[:, 0])
    assert len(response.sequences) == 3


def test_three_hundred_at_once_are_all_answered(side: Side) -> None:
    futures = [
        side.sampler.sample(
            types.ModelInput.from_ints(tokens(number, 5 + number % 40)),
            1 + number % 3,
            types.SamplingParams(max_tokens=1 + number % 20, stop=[]),
        )
        for number in range(300)
    ]

    responses = [future.result() for future in futures]

    for number, response in enumerate(responses):
        assert [len(sequence.tokens) for sequence in response.sequences] == [1 + number % 20] * (1 + number % 3)
    ids = [sequence.sequence_id for response in responses for sequence in response.sequences]
    assert len(set(ids)) == len(ids)


def test_what_cannot_be_sampled_fails_alone(side: Side) -> None:
    context = side.plain.model.config.max_position_embeddings
    wrong = [[5, VOCABULARY], [5] * (context + 1), [2**30], [5] * (4 * context)]
    params = types.SamplingParams(max_tokens=20, stop=[])
    futures = []
    for number in range(24):
        futures.append(side.sampler.sample(types.ModelInput.from_ints(tokens(number)), 2, params))
        futures.append(side.sampler.sample(types.ModelInput.from_ints(wrong[number % len(wrong)]), 1, params))

    for good, bad in zip(futures[::2], futures[1::2], strict=True):
        with pytest.raises((tinker.BadRequestError, tinker.RequestFailedError)) as failure:
            bad.result()
        if isinstance(failure.value, tinker.RequestFailedError):  # accepted, and refused by the sampler
            assert failure.value.category == types.RequestErrorCategory.User
        assert "vocabulary" in str(failure.value) or "context" in str(failure.value)
        assert [len(sequence.tokens) for sequence in good.result().sequences] == [20, 20]
