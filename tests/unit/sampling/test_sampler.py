from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.sampling.constrained.grammar import GrammarTokenizer, compile_grammar
from chockstone.sampling.constrained.guide import Grammar, Guide
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.samples import Constraint, SampledSequence
from chockstone.wire.failures import BadRequest, Failure
from support.sampling.making import (
    CONTEXT,
    EOS,
    TOKENIZER,
    Served,
    finish,
    logprobs_of,
    mixed_requests,
    qwen3,
    random_prompt,
    request,
    result_of,
    tokens_of,
)


def test_greedy_sampling_equals_the_librarys_own_generate(served: Served) -> None:
    prompt = random_prompt(20)
    expected = served.model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=40, eos_token_id=[], pad_token_id=0
    )[0, 20:].tolist()

    (result,) = served.sample(request(prompt, max_tokens=40, temperature=0))

    assert tokens_of(result) == [expected]
    assert result.sequences[0].stop_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.7])
def test_logprobs_are_those_of_the_models_forward_at_the_temperature(served: Served, temperature: float) -> None:
    prompt = random_prompt(9)

    (result,) = served.sample(request(prompt, 3, temperature=temperature, top_k=7, ask={"topk_sample_logprobs": 4}))

    for sequence in result.sequences:
        expected = logprobs_of(served.model, [*prompt, *sequence.tokens], temperature=temperature or 1.0)[8:-1]
        chosen = expected.gather(1, torch.from_numpy(sequence.tokens).long()[:, None])[:, 0]
        top = expected.topk(4)
        assert sequence.topk is not None
        np.testing.assert_allclose(sequence.logprobs, chosen, atol=1e-4)
        np.testing.assert_allclose(sequence.topk.logprobs, top.values, atol=1e-4)
        assert sequence.topk.tokens.tolist() == top.indices.tolist()


def test_many_samples_take_turns_in_few_places(fused: Served) -> None:
    many = request(samples=50, max_tokens=6)

    sampler = Sampler(max_sequences=7)
    sampler.add("many", fused.sampled, None, many, seed=3)
    outcome = result_of(finish(sampler)["many"])

    assert tokens_of(outcome) == tokens_of(fused.sample(many, seed=3)[0])


def test_a_small_request_is_not_shut_out_by_one_for_hundreds(fused: Served) -> None:
    sampler, order = Sampler(max_sequences=4), []
    sampler.add("hundreds", fused.sampled, None, request(samples=200, max_tokens=5), seed=1)
    for _ in range(10):
        sampler.step()
    sampler.add("one", fused.sampled, None, request(max_tokens=5), seed=2)
    while sampler.has_work():
        order += [finished.key for finished in sampler.step()]

    assert order == ["one", "hundreds"]


def steps_until_done(sampler: Sampler, keys: set[str], *, most: int) -> int:
    """Counts steps until all of them are done; fails if others are done before, or after too many steps."""
    for count in range(1, most + 1):
        done = {finished.key for finished in sampler.step()}
        assert done <= keys
        keys = keys - done
        if not keys:
            return count
    raise AssertionError(f"after {most} steps {keys} still wait")


@pytest.mark.parametrize("scored", [False, True], ids=["samples", "scores"])
def test_sixteen_small_owners_wait_for_no_sample_of_one_who_floods(served: Served, scored: bool) -> None:
    sampler, prompt = Sampler(max_sequences=64), random_prompt(10, 3)
    for number in range(300):
        sampler.add(f"flood {number}", served.sampled, None, request(prompt, 4, max_tokens=400), seed=1, owner="ann")
    for _ in range(20):
        sampler.step()
    small = request(prompt, max_tokens=1 if scored else 5, ask={"prompt_logprobs": scored})
    for number in range(16):
        sampler.add(f"small {number}", served.sampled, None, small, seed=1, owner=f"user {number}")

    steps = steps_until_done(sampler, {f"small {number}" for number in range(16)}, most=1000)

    owners_per_step = served.sampled.network.chunks_per_prefill
    rounds = -(-17 // owners_per_step)  # steps until each of the owners had one
    assert steps <= 2 * rounds * (1 + 5), "a round reads their prompts, and each token takes a round; two steps each"


def test_more_small_owners_than_the_reserve_holds_wait_for_each_other_only(fused: Served) -> None:
    sampler = Sampler(max_sequences=4)
    for number in range(50):
        sampler.add(f"flood {number}", fused.sampled, None, request(max_tokens=1500), seed=1, owner="ann")
    for _ in range(10):
        sampler.step()
    keys = [f"small {number}" for number in range(8)]
    for key in keys:
        sampler.add(key, fused.sampled, None, request(max_tokens=5), seed=1, owner=key)

    assert steps_until_done(sampler, set(keys), most=1000) <= 8 * 2 * (1 + 5)


def test_an_owner_s_flood_of_prompts_does_not_delay_another_s_prompt(
    fused: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused.sampled.network, "tokens_per_prefill", 1000)
    monkeypatch.setattr(fused.sampled.network, "scored_tokens_per_prefill", 1000)
    sampler, prompt = Sampler(), random_prompt(1000, 5)
    score = request(prompt, max_tokens=1, ask={"prompt_logprobs": True})
    for number in range(100):
        sampler.add(f"flood {number}", fused.sampled, None, score, seed=1, owner="ann")
    sampler.step()
    sampler.add("small", fused.sampled, None, request(max_tokens=1), seed=1, owner="bob")

    done = [finished.key for _ in range(3) for finished in sampler.step()]

    assert "small" in done
    assert len(done) <= 4, "each step reads one prompt of the flood"


def test_tokens_do_not_depend_on_whose_turn_it_was(served: Served) -> None:
    wish = request(samples=3, max_tokens=12, temperature=1.2)
    expected = tokens_of(served.sample(wish, seed=5)[0])
    sampler = Sampler(max_sequences=2)
    for number in range(9):
        sampler.add(str(number), served.sampled, None, wish, seed=5, owner=str(number % 4))

    outcomes = finish(sampler)

    assert all(tokens_of(result_of(outcomes[str(number)])) == expected for number in range(9))


def test_scoring_waits_for_no_place(fused: Served) -> None:
    sampler, done = Sampler(max_sequences=1), []
    sampler.add("long", fused.sampled, None, request(max_tokens=100), seed=1)
    sampler.step()
    sampler.add("score", fused.sampled, None, request(max_tokens=1, ask={"prompt_logprobs": True}), seed=2)
    while not done:
        done = sampler.step()

    assert [finished.key for finished in done] == ["score"]
    assert list(finish(sampler)) == ["long"]


@pytest.mark.parametrize("after_steps", [0, 1, 2, 5])
def test_a_cancelled_request_frees_its_place_and_is_heard_of_no_more(served: Served, after_steps: int) -> None:
    sampler = Sampler(max_sequences=2)
    sampler.add("gone", served.sampled, None, request(samples=3, max_tokens=2000), seed=1)
    sampler.add("kept", served.sampled, None, request(max_tokens=8), seed=2)
    for _ in range(after_steps):
        sampler.step()

    sampler.cancel("gone")
    sampler.cancel("gone")
    sampler.cancel("never seen")

    outcomes = finish(sampler, steps=40)
    assert list(outcomes) == ["kept"]
    assert tokens_of(result_of(outcomes["kept"])) == tokens_of(served.sample(request(max_tokens=8), seed=2)[0])


def test_a_key_that_is_running_is_refused_and_one_that_ended_may_come_again(fused: Served) -> None:
    sampler = Sampler()
    sampler.add("a", fused.sampled, None, request(), seed=1)

    with pytest.raises(ValueError, match="'a' is running"):
        sampler.add("a", fused.sampled, None, request(), seed=1)
    finish(sampler)
    sampler.add("a", fused.sampled, None, request(), seed=1)

    assert list(finish(sampler)) == ["a"]


def test_without_max_tokens_a_sample_goes_on_until_the_context_is_full() -> None:
    served = Served(qwen3(), max_context=200)

    (result,) = served.sample(request(random_prompt(30), max_tokens=None))

    assert len(result.sequences[0].tokens) == 170
    assert result.sequences[0].stop_reason == "length"


def test_eos_stops_and_is_the_last_token(served: Served) -> None:
    (result,) = served.sample(request(samples=30, max_tokens=60, stops_at_eos=True, temperature=3.0))

    stopped = [sequence for sequence in result.sequences if sequence.stop_reason == "stop"]
    assert stopped
    for sequence in result.sequences:
        assert sequence.tokens.tolist().count(EOS) == (sequence.stop_reason == "stop")
    assert all(sequence.tokens[-1] == EOS for sequence in stopped)


@pytest.mark.parametrize("stops", [{"stop_strings": ("never this",)}, {"stop_tokens": (299,)}], ids=["string", "token"])
def test_eos_stops_beside_the_stops_of_the_caller(served: Served, stops: dict[str, Any]) -> None:
    options: dict[str, Any] = {"samples": 30, "max_tokens": 60, "temperature": 3.0, "seed": 1}
    (free,) = served.sample(request(**options))
    ends = {EOS, *stops.get("stop_tokens", ())}

    (result,) = served.sample(request(**options, **stops, stops_at_eos=True))

    texts = [sequence.tokens.tolist() for sequence in free.sequences]
    cut = [text[: next((n for n, token in enumerate(text, 1) if token in ends), 60)] for text in texts]
    assert any(text[-1] == EOS for text in cut)
    assert [sequence.tokens.tolist() for sequence in result.sequences] == cut
    assert [sequence.stop_reason == "stop" for sequence in result.sequences] == [text[-1] in ends for text in cut]


def test_an_empty_stop_list_ignores_eos(fused: Served) -> None:
    (result,) = fused.sample(request(samples=40, max_tokens=100, stops_at_eos=False, temperature=2.0))

    assert any(EOS in sequence.tokens[:-1] for sequence in result.sequences)
    assert all(len(sequence.tokens) == 100 for sequence in result.sequences)


def test_stop_tokens_and_stop_strings_end_with_the_token_that_completes_them(fused: Served) -> None:
    (free,) = fused.sample(request(max_tokens=60), seed=4)
    tokens = tokens_of(free)[0]
    text = TOKENIZER.decode(tokens[10:13], clean_up_tokenization_spaces=False)

    (by_token,) = fused.sample(request(max_tokens=60, stop_tokens=(tokens[20],)), seed=4)
    (by_string,) = fused.sample(request(max_tokens=60, stop_strings=("never this", text)), seed=4)

    assert tokens_of(by_token)[0] == tokens[: tokens.index(tokens[20]) + 1]
    assert tokens_of(by_string)[0] == tokens[: len(tokens_of(by_string)[0])]
    assert len(tokens_of(by_string)[0]) <= 13
    assert by_token.sequences[0].stop_reason == by_string.sequences[0].stop_reason == "stop"


def test_logits_that_are_not_finite_fail_their_request_alone(fused: Served) -> None:
    huge = fused.adapter(7, size=1e18)
    requests = mixed_requests()
    alone = [tokens_of(fused.sample(one, seed=number)[0]) for number, one in enumerate(requests)]

    sampler = Sampler()
    for number, one in enumerate(requests):
        sampler.add(f"bad {number}", fused.sampled, huge, one, seed=number)
        sampler.add(str(number), fused.sampled, None, one, seed=number)
    outcomes = finish(sampler)

    for number, expected in enumerate(alone):
        failure = outcomes[f"bad {number}"]
        assert isinstance(failure, Failure)
        assert failure.category == "server" and "not finite" in failure.error
        assert tokens_of(result_of(outcomes[str(number)])) == expected


def test_a_sampler_that_was_given_up_leaves_nothing_to_the_next(served: Served) -> None:
    abandoned = Sampler()
    abandoned.add("a", served.sampled, None, request(samples=3, max_tokens=50), seed=1)
    for _ in range(5):
        abandoned.step()

    again = [tokens_of(served.sample(request(samples=2), seed=2)[0]) for _ in range(2)]

    assert again[0] == again[1]


def test_two_models_take_turns(fused: Served, served: Served) -> None:
    sampler = Sampler()
    sampler.add("a", fused.sampled, None, request(samples=2, max_tokens=20), seed=1)
    sampler.add("b", served.sampled, None, request(samples=2, max_tokens=20), seed=1)

    outcomes = finish(sampler)

    assert tokens_of(result_of(outcomes["a"])) == tokens_of(fused.sample(request(samples=2, max_tokens=20), seed=1)[0])
    assert tokens_of(result_of(outcomes["b"])) == tokens_of(served.sample(request(samples=2, max_tokens=20), seed=1)[0])


def test_what_does_not_fit_the_cache_waits_and_what_never_will_is_refused(fused: Served) -> None:
    per_token = fused.sampled.network.bytes_per_token
    sampler = Sampler(cache_bytes=per_token * 600)
    fits = request(random_prompt(100), 3, max_tokens=100)

    for number in range(5):
        sampler.add(str(number), fused.sampled, None, fits, seed=number)
    with pytest.raises(BadRequest, match="needs more cache than this server has"):
        sampler.add("never", fused.sampled, None, request(random_prompt(100), max_tokens=500), seed=1)
    sampler.add("open", fused.sampled, None, request(random_prompt(100), max_tokens=None), seed=1)
    outcomes = finish(sampler)

    for number in range(5):
        assert tokens_of(result_of(outcomes[str(number)])) == tokens_of(fused.sample(fits, seed=number)[0])
    assert 100 <= len(result_of(outcomes["open"]).sequences[0].tokens) < CONTEXT - 100


def test_nothing_is_left_behind(fused: Served) -> None:
    sampler = Sampler(max_sequences=4, cache_bytes=fused.sampled.network.bytes_per_token * 1000)
    for number in range(6):
        sampler.add(str(number), fused.sampled, None, request(samples=3), seed=number)
        sampler.step()
    sampler.cancel("1")
    sampler.cancel("5")

    finish(sampler)

    turns = sampler._turns
    assert (turns._common.places, turns._common.cache_bytes) == (4, fused.sampled.network.bytes_per_token * 1000)
    assert not any((sampler._jobs, sampler._owners, sampler._prefill_queue, sampler._starting, sampler._batches))


def test_the_activity_is_that_of_the_requests_which_run(served: Served) -> None:
    sampler = Sampler(max_sequences=8, cache_bytes=1 << 20)
    assert sampler.activity().cache_bytes == 0
    sampler.add("a", served.sampled, None, request(random_prompt(6), 3, max_tokens=5, temperature=0), seed=1)
    sampler.add("b", served.sampled, None, request(random_prompt(6), 1, max_tokens=5, temperature=0), seed=1)

    finished = sampler.step()
    while not sampler.activity().sequences:
        finished += sampler.step()
    during = sampler.activity()
    while sampler.has_work():
        finished += sampler.step()
    after = sampler.activity()

    assert during.requests == 2
    assert 0 < during.cache_bytes <= during.cache_limit_bytes == (1 << 20) * 5 // 4
    assert (after.requests, after.sequences, after.cache_bytes) == (0, 0, 0)
    results = [result_of(one.outcome) for one in finished]
    tokens = sum(len(sequence.tokens) for result in results for sequence in result.sequences)
    assert after.decoded_tokens == tokens - 4  # the first token of each sample comes from its prefill
    assert after.decoded_tokens / 4 <= after.decode_steps < after.decoded_tokens


ANSWER = Constraint(
    '{"type":"object","properties":{"city":{"enum":["Bern","Ulm"]},"big":{"type":"boolean"}},'
    '"required":["city","big"],"additionalProperties":false}'
)


def constrained(served: Served, constraint: Constraint = ANSWER) -> Grammar:
    return compile_grammar(constraint, GrammarTokenizer(TOKENIZER), vocabulary=served.sampled.vocabulary)


def text_of(sequence: SampledSequence) -> str:
    return TOKENIZER.decode(sequence.tokens[:-1] if sequence.tokens[-1] == EOS else sequence.tokens)


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"temperature": 1.7, "top_k": 3}, {"top_p": 0.3}])
@pytest.mark.parametrize("stops_at_eos", [True, False])
def test_a_constrained_sample_is_what_the_schema_says(
    served: Served, options: dict[str, Any], stops_at_eos: bool
) -> None:
    asked = request(samples=6, max_tokens=200, stops_at_eos=stops_at_eos, ask={"constraint": ANSWER}, **options)

    sampler = Sampler()
    sampler.add("a", served.sampled, None, asked, seed=4, grammar=constrained(served))
    result = result_of(finish(sampler)["a"])

    for sequence in result.sequences:
        assert sequence.stop_reason == "stop"
        assert (sequence.tokens[-1] == EOS) == stops_at_eos
        answer = json.loads(text_of(sequence))
        assert answer["city"] in ("Bern", "Ulm") and isinstance(answer["big"], bool)


def test_logprobs_of_a_constrained_sample_are_those_of_the_model_without_it(served: Served) -> None:
    prompt = random_prompt(9)
    asked = request(prompt, max_tokens=60, temperature=0.7, ask={"constraint": ANSWER, "topk_sample_logprobs": 2})

    sampler = Sampler()
    sampler.add("a", served.sampled, None, asked, seed=4, grammar=constrained(served))
    (sequence,) = result_of(finish(sampler)["a"]).sequences

    expected = logprobs_of(served.model, [*prompt, *sequence.tokens], temperature=0.7)[8:-1]
    chosen = expected.gather(1, torch.from_numpy(sequence.tokens).long()[:, None])[:, 0]
    np.testing.assert_allclose(sequence.logprobs, chosen, atol=1e-4)
    assert sequence.topk is not None
    np.testing.assert_allclose(sequence.topk.logprobs, expected.topk(2).values, atol=1e-4)


def test_a_constraint_changes_no_other_sample_of_its_batch(fused: Served) -> None:
    alone, beside = Sampler(), Sampler()
    for sampler, grammar in ((alone, None), (beside, constrained(fused))):
        sampler.add("free", fused.sampled, None, request(samples=2, max_tokens=25), seed=1)
        sampler.add("bound", fused.sampled, None, request(max_tokens=25), seed=2, grammar=grammar)

    free, other = finish(alone)["free"], finish(beside)["free"]

    assert tokens_of(result_of(free)) == tokens_of(result_of(other))
    for one, two in zip(result_of(free).sequences, result_of(other).sequences, strict=True):
        np.testing.assert_array_equal(one.logprobs, two.logprobs)


def test_a_seed_gives_the_same_constrained_sample_again(fused: Served) -> None:
    results = []
    for _ in range(2):
        sampler = Sampler()
        sampler.add("a", fused.sampled, None, request(samples=3, max_tokens=80), seed=9, grammar=constrained(fused))
        results.append(tokens_of(result_of(finish(sampler)["a"])))

    assert results[0] == results[1]
    assert len({tuple(tokens) for tokens in results[0]}) > 1


def test_a_constraint_that_becomes_too_complex_fails_alone(fused: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    real, masks = Guide.allow, []

    def allow(guide: Guide) -> Any:
        masks.append(guide)
        if len(masks) > 9:
            raise BadRequest("the constraint is too complex")
        return real(guide)

    monkeypatch.setattr(Guide, "allow", allow)
    sampler = Sampler()
    # Its last token would end it as a success.
    sampler.add("bound", fused.sampled, None, request(max_tokens=10), seed=1, grammar=constrained(fused))
    sampler.add("free", fused.sampled, None, request(max_tokens=20), seed=1)

    outcomes = finish(sampler)

    failure = outcomes["bound"]
    assert isinstance(failure, Failure) and failure.category == "user" and "too complex" in failure.error
    assert tokens_of(result_of(outcomes["free"])) == tokens_of(fused.sample(request(max_tokens=20), seed=1)[0])


def test_an_allowed_token_that_is_almost_impossible_has_a_finite_logprob(fused: Served) -> None:
    sampler = Sampler()
    cold = request(max_tokens=60, temperature=1e-3)
    sampler.add("a", fused.sampled, None, cold, seed=1, grammar=constrained(fused))

    (sequence,) = result_of(finish(sampler)["a"]).sequences

    assert np.isfinite(sequence.logprobs).all() and sequence.logprobs.min() < -1000
