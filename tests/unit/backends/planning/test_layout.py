from __future__ import annotations

from dataclasses import replace

import pytest

from chockstone.backends.planning.layout import layout_of
from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.failures import BadRequest
from support.tiny_models import tiny_base


@pytest.mark.parametrize(
    "spec", [RunSpec(rank=4, seed=1), RunSpec(rank=2, seed=1, train_mlp=False), RunSpec(rank=0, seed=1)]
)
def test_a_layout_is_what_the_state_of_a_run_says(spec: RunSpec) -> None:
    base = tiny_base()

    layout = layout_of(base, spec)

    assert layout.run == TrainedRun(base, spec).state()["run"]
    assert layout.scale == (32 / spec.rank if spec.rank else 1.0)


def test_a_quantised_model_has_no_full_weights_to_replace() -> None:
    base = replace(tiny_base(), precision="8bit")

    with pytest.raises(BadRequest, match="is quantised"):
        layout_of(base, RunSpec(rank=0, seed=1))
    assert layout_of(base, RunSpec(rank=4, seed=1)).run["base_precision"] == "8bit"
