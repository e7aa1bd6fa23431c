from __future__ import annotations

from typing import Any

import pytest

from chockstone.backends.run_spec import MAX_RANK, RunSpec
from chockstone.wire.failures import BadRequest


@pytest.mark.parametrize("spec", [RunSpec(rank=0, seed=-(2**63)), RunSpec(rank=MAX_RANK, seed=1, train_mlp=False)])
def test_a_spec_is_read_as_it_was_written(spec: RunSpec) -> None:
    assert RunSpec.from_json(spec.to_json()) == spec


def test_rank_0_trains_all_weights() -> None:
    assert RunSpec(rank=0, seed=1).is_full
    assert not RunSpec(rank=1, seed=1).is_full


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": -1}, "rank must be a whole number from 0 to 4096, not -1"),
        ({"rank": MAX_RANK + 1}, "rank must be"),
        ({"rank": True}, "rank must be"),
        ({"seed": 2**63}, "seed must be a whole number of 64 bits"),
        ({"train_attn": 1}, "train_attn must be true or false"),
        ({"optimizer": "lion"}, "the optimizer 'lion' is not supported here; choose one of adamw, sgd"),
        ({"train_attn": False, "train_mlp": False, "train_unembed": False}, "turn on at least one"),
        ({"alpha": 3}, "has no 'alpha'"),
    ],
)
def test_what_cannot_be_trained_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        RunSpec.from_json({"rank": 4, "seed": 1, **change})


def test_a_spec_without_a_seed_is_refused() -> None:
    with pytest.raises(BadRequest, match="lacks 'seed'"):
        RunSpec.from_json({"rank": 4})
