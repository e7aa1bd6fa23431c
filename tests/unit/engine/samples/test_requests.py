from __future__ import annotations

from dataclasses import replace

import orjson

from chockstone.engine.samples.completions import CLONE_SPAN
from chockstone.engine.samples.requests import (
    SampledTokens,
    SampleFacts,
    SamplerSource,
    Submitted,
    request_id_of,
    seed_of,
)
from chockstone.engine.storage.archive_names import ephemeral_name

SOURCE = SamplerSource("s:sample:3", "ann", "tiny", "s.train.0/sampler_weights/a", "0" * 64)
FACTS = SampleFacts("s:sample:3:7", SOURCE, 7, 2, 11)
USED = SampledTokens("ann", "s", "tiny", 5, 3, 1893499200)


def test_a_request_is_read_as_it_was_written() -> None:
    for facts in (FACTS, replace(FACTS, seq_id=None, source=replace(SOURCE, archive=None, seal=None))):
        assert SampleFacts.from_json(orjson.loads(orjson.dumps(facts.to_json()))) == facts


def test_a_request_of_an_earlier_version_has_no_seal() -> None:
    written = {name: value for name, value in FACTS.to_json().items() if name != "seal"}

    assert SampleFacts.from_json(written).source == replace(SOURCE, seal=None)


def test_a_sampler_without_a_name_samples_from_an_archive_of_its_own() -> None:
    assert not SOURCE.is_anonymous
    assert replace(SOURCE, archive=ephemeral_name("s:sample:3")).is_anonymous
    assert not replace(SOURCE, archive=ephemeral_name("s:sample:4")).is_anonymous
    assert SOURCE.session_id == "s"


def test_each_clone_of_a_client_has_its_own_feed() -> None:
    feeds = [replace(FACTS, seq_id=seq_id).feed for seq_id in (None, 0, CLONE_SPAN - 1, CLONE_SPAN, 2 * CLONE_SPAN + 1)]

    assert feeds == [("s:sample:3", clone) for clone in (0, 0, 0, 1, 2)]


def test_the_samples_of_a_request_are_numbered() -> None:
    assert Submitted("s:sample:3:7", 2).sequence_ids == ("s:sample:3:7-0", "s:sample:3:7-1")
    assert request_id_of("s:sample:3", 7) == "s:sample:3:7"


def test_a_repeated_request_has_the_same_seed_and_others_have_others() -> None:
    seed = seed_of("any", SOURCE, 7)

    assert seed == seed_of("other", SOURCE, 7), "a numbered request is known by its number"
    assert seed_of("any", SOURCE, None) == seed_of("any", SOURCE, None) != seed_of("other", SOURCE, None)
    assert seed != seed_of("any", SOURCE, 8)
    assert seed != seed_of("any", replace(SOURCE, sampling_session_id="s:sample:4"), 7)
    assert 0 <= seed < 2**63


def test_what_a_sample_used_is_read_as_it_was_written() -> None:
    assert SampledTokens.from_json(orjson.loads(orjson.dumps(USED.to_json()))) == USED


def test_results_of_failures_and_of_earlier_versions_say_nothing_of_use() -> None:
    assert SampledTokens.from_json({}) is None
    assert SampledTokens.from_json({"prompt_tokens": 5, "tokens": 3}) is None
