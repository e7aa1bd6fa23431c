from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.trainers.rollouts.loader import ProblemDraw
from chockstone.trainers.rollouts.rollouts import RolloutGroup, Sample, pack_groups, unpack_groups


def sample(*tokens: int, reward: float = 0.1, base: bool = False) -> Sample:
    logprobs = np.array([-0.1 * token for token in tokens], np.float32)
    return Sample(np.array(tokens, np.int32), logprobs, reward, len(tokens) > 2, logprobs * 2 if base else None)


def group(number: int, *samples: Sample, prompt: tuple[int, ...] = (1, 2)) -> RolloutGroup:
    return RolloutGroup(
        ProblemDraw(number, number // 5, number % 5), f"p{number % 5}", number // 2, np.array(prompt, np.int32), samples
    )


def plain(groups: list[RolloutGroup]) -> list[object]:
    return [_plain(dataclasses.asdict(group)) for group in groups]


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tolist()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    "groups",
    [
        [],
        [group(0, sample(3))],
        [group(7, sample(3, 4, 5), sample(), sample(1)), group(8, sample(2), prompt=(9,))],
        [group(1, sample(), sample())],
        [group(1, sample(3, base=True), sample(4)), group(2, sample(5, 6, 7, base=True))],
        [group(1, sample(3, reward=-0.0), sample(1, reward=1e-300))],
    ],
    ids=["none", "one", "uneven", "empty answers", "some with base", "odd rewards"],
)
def test_groups_come_back_from_an_archive_as_they_were(groups: list[RolloutGroup], tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"rollouts": pack_groups(groups)}, step=1).result()
        loaded = checkpointer.load()

    assert plain(unpack_groups(loaded["rollouts"])) == plain(groups)


def test_sample_ids_tell_epochs_apart() -> None:
    assert group(3, sample(1)).sample_id(0) == "0/p3/0"
    assert group(8, sample(1)).sample_id(1) == "1/p3/1"
