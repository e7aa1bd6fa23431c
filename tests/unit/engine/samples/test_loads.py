from __future__ import annotations

from datetime import UTC, datetime

from chockstone.engine.samples.loads import SamplerUse, SamplerUses
from chockstone.engine.samples.requests import SampledTokens

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_requests_and_tokens_of_a_sampler_add_up() -> None:
    uses = SamplerUses()
    for _ in range(2):
        uses.note("s:sample:0", SampledTokens("ann", "s", "m", 10, 3, 0), at=NOW)
    uses.note("s:sample:0", None, at=NOW)

    assert uses.get("s:sample:0") == SamplerUse(3, 20, 6, NOW)
    assert uses.get("other") == SamplerUse()


def test_the_samplers_that_were_not_used_for_longest_are_forgotten() -> None:
    uses = SamplerUses(kept=2)
    for name in ("a", "b", "a", "c"):
        uses.note(name, None, at=NOW)

    assert (uses.get("a").requests, uses.get("b").requests, uses.get("c").requests) == (2, 0, 1)
