from __future__ import annotations

from tinker import types

from chockstone.wire.codecs.samples import SamplingParams


def test_sampling_without_parameters_is_what_the_sdk_means_by_it() -> None:
    ours, theirs = SamplingParams(), types.SamplingParams()

    assert (ours.max_tokens, ours.seed, ours.temperature, ours.top_k, ours.top_p) == (
        theirs.max_tokens,
        theirs.seed,
        theirs.temperature,
        theirs.top_k,
        theirs.top_p,
    )
