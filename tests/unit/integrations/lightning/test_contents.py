"""Contents: what an archive holds of a Lightning checkpoint, and what it says about it."""

from __future__ import annotations

import math
from enum import Enum
from pathlib import Path

import torch

from chockstone.integrations.lightning.contents import FULL, MODEL, describe, storable


class Color(Enum):
    RED = 1


def test_hyperparameters_that_an_archive_cannot_hold_are_named_and_left_out() -> None:
    checkpoint = {
        "state_dict": {"weight": torch.ones(2)},
        "hyper_parameters": {
            "lr": 0.1,
            "color": Color.RED,
            "data": Path("/data"),
            "nested": {"net": torch.nn.Linear, "sizes": (1, 2)},
            "layers": [3, len],
        },
        "hparams_type": dict,
    }

    state, left_out = storable(checkpoint)

    assert state["hyper_parameters"] == {"lr": 0.1, "data": "/data", "nested": {"sizes": (1, 2)}, "layers": [3]}
    assert left_out == ("hyper_parameters.color", "hyper_parameters.nested.net", "hyper_parameters.layers[1]")
    assert "hparams_type" not in state
    assert checkpoint["hyper_parameters"]["color"] is Color.RED


def test_the_manifest_says_step_kind_and_monitored_metric() -> None:
    monitored = {"monitor": "val/loss", "current_score": torch.tensor(0.5)}
    unmonitored = {"monitor": None, "current_score": None}
    diverged = {"monitor": "other", "current_score": torch.tensor(math.nan)}
    checkpoint = {
        "global_step": 40,
        "pytorch-lightning_version": "2.6.0",
        "loops": {},
        "optimizer_states": [],
        "callbacks": {"a": monitored, "b": unmonitored, "c": diverged},
    }

    facts = describe(checkpoint)

    assert (facts.step, facts.kind, facts.version) == (40, FULL, "2.6.0")
    assert facts.metrics == {"val/loss": 0.5}


def test_a_checkpoint_of_weights_alone_is_of_another_kind() -> None:
    assert describe({"global_step": 40, "loops": {}, "state_dict": {}}).kind == MODEL
    assert describe({"model": {}}).kind == FULL  # of Fabric, which has no loops
