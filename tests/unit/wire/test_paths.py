from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker.types.checkpoint import ParsedCheckpointTinkerPath

from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import TinkerPath, check_name, check_run_id

RUN = "2f6c:train:0"


@pytest.mark.parametrize(
    ("kind", "checkpoint_type"),
    [("weights", "training"), ("sampler_weights", "sampler"), ("external_weights", "external")],
)
def test_the_sdk_parses_what_we_format_and_the_reverse(kind: str, checkpoint_type: str) -> None:
    path = TinkerPath.of(RUN, kind, "step-000_1.a")

    theirs = ParsedCheckpointTinkerPath.from_tinker_path(str(path))

    assert str(path) == f"tinker://{RUN}/{kind}/step-000_1.a"
    assert (theirs.training_run_id, theirs.checkpoint_type, theirs.checkpoint_id) == (
        path.run_id,
        path.kind.checkpoint_type,
        path.checkpoint_id,
    )
    assert theirs.checkpoint_type == checkpoint_type
    assert TinkerPath.parse(str(path)) == path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a checkpoint. Paths are tinker://<run id>/<kind>/<name>"),
        ("weights/a", "is not a checkpoint"),
        ("tinker:/r/weights/a", "is not a checkpoint"),
        ("Tinker://r/weights/a", "is not a checkpoint"),
        ("r/weights/a", "is not a checkpoint"),
        ("tinker://r/a", "is not a checkpoint"),
        ("tinker://r/weights/a/b", "is not a checkpoint"),
        ("tinker://r/weights/a/", "is not a checkpoint"),
        (
            "tinker://r/recovery/a",
            "'recovery' is not a kind of checkpoint. Use weights, sampler_weights, external_weights",
        ),
        ("tinker://r/WEIGHTS/a", "'WEIGHTS' is not a kind"),
        ("tinker:///weights/a", "'' is not a run id"),
        ("tinker://../weights/a", "'..' is not a run id"),
        ("tinker://r?/weights/a", "'r?' is not a run id"),
        ("tinker://r/weights/", "'' cannot name a checkpoint"),
        ("tinker://r/weights/..", "'..' cannot name a checkpoint. A name has 1 to 255 characters"),
        ("tinker://r/weights/.", "'.' cannot name a checkpoint"),
        ("tinker://r/weights/a b", "'a b' cannot name"),
        ("tinker://r/weights/a%2e", "cannot name"),
        ("tinker://r/weights/a\n", "cannot name"),
        ("tinker://r/weights/é", "cannot name"),
        ("tinker://r/weights/" + "a" * 256, "cannot name"),
    ],
)
def test_anything_else_is_refused_with_the_rule(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        TinkerPath.parse(text)

    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 700


def test_latest_is_no_name_but_may_stand_for_one() -> None:
    path = TinkerPath.parse(f"tinker://{RUN}/weights/latest")

    assert path.is_latest
    assert not TinkerPath.of(RUN, "weights", "latest-1").is_latest
    with pytest.raises(BadRequest, match="'latest' cannot name a checkpoint"):
        check_name("latest")


def test_names_at_the_edge_of_the_rule() -> None:
    assert check_name("a" * 255) == "a" * 255
    assert check_name("...") == "..."
    assert check_name("-rf") == "-rf"
    assert check_run_id(RUN) == RUN


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.text(max_size=40) | st.from_regex(r"tinker://[^/]{0,5}/(weights|sampler_weights)/[^/]{0,5}", fullmatch=True))
def test_any_text_gives_a_path_or_a_refusal(text: str) -> None:
    try:
        path = TinkerPath.parse(text)
    except BadRequest:
        return

    assert str(path) == text
