from __future__ import annotations

from support.sampling.making import (
    Served,
    request,
    tokens_of,
)


def test_samples_of_one_prompt_differ_and_repeat_with_the_seed(served: Served) -> None:
    (once,) = served.sample(request(samples=6), seed=1)
    (again,) = served.sample(request(samples=6), seed=1)
    (named,) = served.sample(request(samples=6, seed=1), seed=99)
    (other,) = served.sample(request(samples=6), seed=2)

    assert len({tuple(tokens) for tokens in tokens_of(once)}) == 6
    assert tokens_of(once) == tokens_of(again) == tokens_of(named)
    assert not set(map(tuple, tokens_of(once))) & set(map(tuple, tokens_of(other)))
