"""Prefixes that are read from the cache: the same bits as without it, and who shares what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.samples import SampleRequest, SampleResult
from support.sampling.making import Served, finish, gpt_neox, logprobs_of, qwen3, random_prompt, request, result_of

SYSTEM = random_prompt(300, 1)  # four whole blocks and a part
TAILS = (1, 20, 64, 83, 200)
NONE, LARGE = 0, 1 << 28
BLOCK_BYTES = 2 * 2 * 2 * 64 * 16 * 4  # of qwen3() in float32


@pytest.fixture(scope="module", params=["float32", "bfloat16", "llama-sized heads"])
def exact(request: pytest.FixtureRequest) -> Served:
    if request.param == "llama-sized heads":
        return Served(qwen3(hidden_size=160, intermediate_size=200))
    return Served(qwen3(getattr(torch, request.param)))


def prompts() -> list[list[int]]:
    return [SYSTEM + random_prompt(length, length) for length in TAILS]


def asked(prompt: Sequence[int], **ask: Any) -> SampleRequest:
    return request(prompt, 2, max_tokens=9, ask=ask)


def one_by_one(
    served: Served, requests: Sequence[SampleRequest], cache_bytes: int, adapter: Adapter | None = None
) -> list[SampleResult]:
    sampler = Sampler(prefix_cache_bytes=cache_bytes)
    results = []
    for each in requests:
        sampler.add("a", served.sampled, adapter, each, seed=3)
        results.append(result_of(finish(sampler)["a"]))
    return results


def assert_same_bits(one: SampleResult, other: SampleResult) -> None:
    for name in ("prompt_logprobs", "topk_prompt_logprobs", "target_prompt_logprobs", "prompt_alt_tokens"):
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
        elif left is not None:
            np.testing.assert_array_equal(left.tokens, right.tokens)
            np.testing.assert_array_equal(left.logprobs, right.logprobs)
    for left, right in zip(one.sequences, other.sequences, strict=True):
        np.testing.assert_array_equal(left.tokens, right.tokens)
        np.testing.assert_array_equal(left.logprobs, right.logprobs)


@pytest.mark.parametrize("with_adapter", [False, True])
@pytest.mark.parametrize("cache_bytes", [LARGE, 3 * BLOCK_BYTES], ids=["kept", "partly evicted"])
def test_bits_are_those_without_the_cache(exact: Served, cache_bytes: int, with_adapter: bool) -> None:
    adapter = exact.adapter(1) if with_adapter else None
    requests = [asked(prompt, prompt_logprobs=True, prompt_logprobs_last_n=3) for prompt in prompts()]

    without = one_by_one(exact, requests, NONE, adapter)
    cached = one_by_one(exact, requests + requests[::-1], cache_bytes, adapter)

    assert any(result.prompt_cache_hit_tokens for result in cached)
    for one, other in zip(without + without[::-1], cached, strict=True):
        assert_same_bits(one, other)


def test_hits_are_whole_blocks_that_end_before_the_first_logits_that_are_needed(exact: Served) -> None:
    first, again, longer, scored, all_scored, last = one_by_one(
        exact,
        [
            asked(SYSTEM),
            asked(SYSTEM),
            asked(SYSTEM + random_prompt(90, 9)),
            asked(SYSTEM, prompt_logprobs=True, prompt_logprobs_last_n=50),
            asked(SYSTEM, prompt_logprobs=True),
            asked(SYSTEM[:256]),  # its last block is needed for its last logits
        ],
        LARGE,
    )

    hits = [one.prompt_cache_hit_tokens for one in (first, again, longer, scored, all_scored, last)]
    assert hits == [0, 256, 256, 192, 0, 192]
    assert first.prompt_cache_hit_tokens == 0
    np.testing.assert_array_equal(scored.prompt_logprobs[-50:], all_scored.prompt_logprobs[-50:])  # type: ignore[index]


def test_scores_and_first_tokens_do_not_depend_on_the_batch(exact: Served) -> None:
    """With adapters, other prompts and other lengths beside them, cached or not."""
    adapters = [None, exact.adapter(1), exact.adapter(2, rank=7)]
    alone = {
        (number, length): one_by_one(
            exact,
            [request(SYSTEM + random_prompt(length, length), 1, max_tokens=1, ask={"prompt_logprobs": True})],
            NONE,
            adapter,
        )[0]
        for number, adapter in enumerate(adapters)
        for length in TAILS
    }

    for cache_bytes, order in ((NONE, 1), (LARGE, 1), (LARGE, -1)):
        sampler = Sampler(prefix_cache_bytes=cache_bytes)
        for number, length in list(alone)[::order]:
            prompt = SYSTEM + random_prompt(length, length)
            both = {"scored": {"prompt_logprobs": True}, "plain": {}}
            for name, ask in both.items():
                one = request(prompt, 1, max_tokens=1 if ask else 2, ask=ask)  # the second one has a prefix
                sampler.add(f"{name}-{number}-{length}", exact.sampled, adapters[number], one, seed=3)
            sampler.add(f"beside-{number}-{length}", exact.sampled, None, asked(random_prompt(length, 7)), seed=4)
        outcomes = finish(sampler)
        for (number, length), expected in alone.items():
            scored, plain = (result_of(outcomes[f"{name}-{number}-{length}"]) for name in ("scored", "plain"))
            assert_same_bits(expected, scored)
            np.testing.assert_array_equal(expected.sequences[0].logprobs, plain.sequences[0].logprobs[:1])
            assert (plain.prompt_cache_hit_tokens > 0) <= (cache_bytes > 0)
        hits = sum(result_of(outcome).prompt_cache_hit_tokens for outcome in outcomes.values())
        assert (hits > 0) == (cache_bytes > 0)


def test_what_arrives_together_is_computed_once(fused: Served) -> None:
    sampler = Sampler(prefix_cache_bytes=LARGE)
    for number in range(10):
        prompt = SYSTEM + random_prompt(10, number)
        sampler.add(str(number), fused.sampled, None, asked(prompt), seed=number)

    hits = sorted(result_of(outcome).prompt_cache_hit_tokens for outcome in finish(sampler).values())

    assert hits == [0] + [256] * 9
    assert sampler.activity().prefix_hit_tokens == sum(hits)


def test_neither_owners_nor_weights_share(fused: Served) -> None:
    sampler = Sampler(prefix_cache_bytes=LARGE)
    one, other = fused.adapter(1), fused.adapter(1)
    hits = []
    for owner, adapter in (("ann", None), ("bob", None), ("ann", one), ("ann", other), ("ann", one), ("bob", None)):
        sampler.add("a", fused.sampled, adapter, asked(SYSTEM), seed=1, owner=owner)
        hits.append(result_of(finish(sampler)["a"]).prompt_cache_hit_tokens)

    assert hits == [0, 0, 0, 0, 256, 256]


def test_running_requests_take_the_memory_first(fused: Served) -> None:
    bytes_per_token = fused.sampled.network.bytes_per_token
    sampler = Sampler(prefix_cache_bytes=LARGE, cache_bytes=1124 * bytes_per_token)
    sampler.add("a", fused.sampled, None, asked(SYSTEM), seed=1)
    finish(sampler)
    assert sampler.activity().prefix_cache_bytes == 256 * bytes_per_token

    sampler.add("large", fused.sampled, None, request(random_prompt(100), 1, max_tokens=900), seed=1)
    for _ in range(20):
        sampler.step()
        now = sampler.activity()
        assert now.cache_bytes + now.prefix_cache_bytes <= now.cache_limit_bytes
    assert now.prefix_evicted_blocks > 0
    finish(sampler)


def test_it_can_be_dropped(fused: Served) -> None:
    sampler = Sampler(prefix_cache_bytes=LARGE)
    sampler.add("a", fused.sampled, None, asked(SYSTEM), seed=1)
    finish(sampler)

    sampler.drop_prefixes()

    assert sampler.activity().prefix_cache_bytes == 0


def test_a_cancelled_leader_leaves_the_others_to_compute(fused: Served) -> None:
    sampler = Sampler(prefix_cache_bytes=LARGE)
    for key in "abc":
        sampler.add(key, fused.sampled, None, asked(random_prompt(2500, 5)), seed=1)
    sampler.step()

    sampler.cancel("a")

    assert {key: result_of(outcome).prompt_cache_hit_tokens > 0 for key, outcome in finish(sampler).items()} == {
        "b": True,
        "c": True,
    }


def test_logprobs_are_the_models_own_with_a_warm_cache(fused: Served) -> None:
    prompt = SYSTEM + random_prompt(30, 3)
    _, warm = one_by_one(fused, [asked(prompt), asked(prompt)], LARGE)

    for sequence in warm.sequences:
        expected = logprobs_of(fused.model, [*prompt, *sequence.tokens])[len(prompt) - 1 : -1]
        chosen = expected.gather(1, torch.from_numpy(sequence.tokens).long()[:, None])[:, 0]
        np.testing.assert_allclose(sequence.logprobs, chosen, atol=1e-4)


def test_the_generic_network_has_no_prefix_cache() -> None:
    served = Served(gpt_neox())

    assert [one.prompt_cache_hit_tokens for one in one_by_one(served, [asked(SYSTEM)] * 2, LARGE)] == [0, 0]
