"""One rank chooses for all; with several ranks it is tested by the jobs of ``test_accelerator``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import DamagedArchive
from chockstone.integrations.accelerate.rank_0 import choose_newest, from_rank_0
from support.killed_training import flip_bit


def test_alone_a_value_is_its_own() -> None:
    assert from_rank_0({"a": 1}) == {"a": 1}


def test_the_newest_sound_checkpoint_is_chosen_and_damage_is_never_a_first_start(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        assert choose_newest(checkpointer) is None
        for step in (1, 2):
            checkpointer.save({"x": np.ones(100)}, step=step).result()
        flip_bit(tmp_path / "step-00000002.tar")

        chosen = choose_newest(checkpointer)

        assert chosen is not None
        assert chosen.name == "step-00000001"
        assert [skipped.name for skipped in chosen.skipped] == ["step-00000002"]
        assert choose_newest(checkpointer, name="step-00000001") is not None
        flip_bit(tmp_path / "step-00000001.tar")
        with pytest.raises(DamagedArchive):
            choose_newest(checkpointer)
