"""A superseded attempt removes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chockstone.checkpoints import Resume
from chockstone.checkpoints.resume.retention_runner import RetentionRunner
from chockstone.checkpoints.retention.policy import Retention


def _state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def test_whoever_was_superseded_removes_nothing_any_more(tmp_path: Path) -> None:
    """The later attempt may be going by what the policy of the earlier one would remove."""
    with Resume(tmp_path / "run", attempt=0, retention=Retention(keep_last=None)) as resume:
        for step in range(1, 5):
            resume.save(_state(), step=step).result()
        Resume(tmp_path / "run", attempt=1).resolve()
        assert RetentionRunner(resume._chain(), Retention(keep_last=2)).tidy() == []
    assert len(list((tmp_path / "run/attempt-00000.ckpt").glob("*.tar"))) == 4
