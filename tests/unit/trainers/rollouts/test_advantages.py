from __future__ import annotations

import numpy as np
import pytest

from chockstone.trainers.rollouts.advantages import group_advantages, make_train_batch
from chockstone.trainers.rollouts.loader import ProblemDraw
from chockstone.trainers.rollouts.rollouts import RolloutGroup, Sample
from support.trainers.fakes import config


def group(*samples: Sample) -> RolloutGroup:
    return RolloutGroup(ProblemDraw(0, 0, 0), "p", 0, np.array([7, 8, 9], np.int32), samples)


def sample(tokens: list[int], reward: float, base: list[float] | None = None) -> Sample:
    logprobs = np.array([-1.0 * (place + 1) for place in range(len(tokens))], np.float32)
    against = None if base is None else np.array(base, np.float32)
    return Sample(np.array(tokens, np.int32), logprobs, reward, False, against)


def test_advantages_are_rewards_less_their_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 1.0], normalise=False) == [0.5, -0.5, -0.5, 0.5]


def test_normalised_they_have_a_deviation_of_one() -> None:
    assert np.std(group_advantages([1.0, 5.0, 3.0], normalise=True)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("normalise", [False, True])
def test_equal_rewards_teach_exactly_nothing(normalise: bool) -> None:
    assert group_advantages([0.1] * 3, normalise=normalise) == [0.0] * 3  # whose mean is not 0.1
    assert make_train_batch([group(sample([1], 0.1), sample([2], 0.1), sample([3], 0.1))], config()).data == []


def test_a_datum_has_prompt_and_answer_shifted_by_one() -> None:
    batch = make_train_batch([group(sample([4, 5], 1.0), sample([6], 0.0))], config())

    first, second = batch.data
    assert first.model_input.to_ints() == [7, 8, 9, 4]
    inputs = {name: tensor.to_numpy().tolist() for name, tensor in first.loss_fn_inputs.items()}
    assert inputs == {"target_tokens": [8, 9, 4, 5], "logprobs": [0, 0, -1, -2], "advantages": [0, 0, 0.5, 0.5]}
    assert second.loss_fn_inputs["advantages"].to_numpy().tolist() == [0, 0, -0.5]
    assert batch.advantages == [[0.5, -0.5]]
    assert batch.kl_to_base is None


def test_an_answer_without_a_token_is_compared_with_and_not_trained_on() -> None:
    batch = make_train_batch([group(sample([], 1.0), sample([6], 0.0))], config())

    assert batch.advantages == [[0.5, -0.5]]
    assert [each.model_input.to_ints() for each in batch.data] == [[7, 8, 9]]


def test_the_penalty_moves_towards_the_base_and_adds_up_to_nothing() -> None:
    groups = [group(sample([4, 5], 1.0, base=[-1.0, -5.0]), sample([6], 1.0, base=[-1.0]))]

    batch = make_train_batch(groups, config(kl_coefficient=0.5))

    assert batch.kl_to_base == pytest.approx((0 + 3 + 0) / 3)
    moved = [each.loss_fn_inputs["advantages"].to_numpy().tolist()[2:] for each in batch.data]
    assert moved == [[0.5, -1.0], [0.5]]


def test_without_a_penalty_the_distance_is_told_and_changes_nothing() -> None:
    groups = [group(sample([4], 1.0, base=[-2.0]), sample([6], 1.0, base=[-2.0]))]

    batch = make_train_batch(groups, config())

    assert batch.kl_to_base == pytest.approx(1.0)
    assert batch.data == []
