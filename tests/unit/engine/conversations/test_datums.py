from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest
import tinker

from chockstone.engine.conversations.answers import Correction, Feedback, KeptConversation
from chockstone.engine.conversations.datums import ConversationDatum, LossName, datums_of
from chockstone.trainers import read_datums
from support.engine.making import NOW
from support.engine.stored_answers import PROMPT, stored_answer, stored_choice


def kept(feedback: Mapping[int, Feedback], **facts: object) -> KeptConversation:
    return KeptConversation(stored_answer(**facts), NOW, feedback, 4096)


def of_sdk(found: ConversationDatum) -> tinker.Datum:
    (read,) = read_datums([json.dumps(found.to_json())])
    return read.datum


def only(found: list[ConversationDatum]) -> dict[str, list[float]]:
    (one,) = found
    datum = of_sdk(one)
    return {name: each.tolist() for name, each in datum.loss_fn_inputs.items()}


def test_a_datum_for_importance_sampling_has_the_reward_as_advantage_of_each_sampled_token() -> None:
    conversation = kept({0: Feedback(0.5)})

    inputs = only(datums_of(conversation, "importance_sampling"))

    assert inputs["target_tokens"] == [6, 7, 8, 9]
    assert inputs["advantages"] == [0.0, 0.0, 0.5, 0.5]
    assert inputs["logprobs"] == [0.0, 0.0, *conversation.answer.choices[0].logprobs]


def test_a_datum_for_cross_entropy_has_weight_0_on_the_prompt() -> None:
    (found,) = datums_of(kept({}), "cross_entropy")

    assert only([found])["weights"] == [0.0, 0.0, 1.0, 1.0]
    assert of_sdk(found).model_input.to_ints() == [5, 6, 7, 8]


def test_the_numbers_of_a_datum_are_those_that_were_sampled_bit_by_bit() -> None:
    logprobs = np.random.default_rng(0).normal(size=999).astype(np.float32)
    conversation = kept({0: Feedback(1.0)}, choices=[stored_choice((7,) * 999, tuple(logprobs.tolist()))])

    (found,) = datums_of(conversation, "importance_sampling")
    datum = of_sdk(found)

    exported = datum.loss_fn_inputs["logprobs"].to_numpy()
    assert exported.dtype == np.float32
    assert exported[len(PROMPT) - 1 :].tobytes() == logprobs.tobytes()


def test_a_correction_replaces_the_answer_for_cross_entropy_only() -> None:
    conversation = kept({0: Feedback(1.0, Correction((1, 2, 3), "no"))})

    corrected = datums_of(conversation, "cross_entropy")

    assert only(corrected)["target_tokens"] == [6, 7, 1, 2, 3]
    assert corrected[0].to_json()["corrected"] is True
    assert only(datums_of(conversation, "importance_sampling"))["target_tokens"] == [6, 7, 8, 9]


def test_each_choice_is_a_datum_and_those_without_a_reward_are_left_out() -> None:
    conversation = kept({1: Feedback(-1.0)}, choices=[stored_choice()] * 3)

    assert [found.choice for found in datums_of(conversation, "importance_sampling")] == [1]
    assert [found.choice for found in datums_of(conversation, "cross_entropy")] == [0, 1, 2]
    assert [found.choice for found in datums_of(conversation, "cross_entropy", min_reward=-1.0)] == [1]
    assert not datums_of(conversation, "cross_entropy", min_reward=0.0)


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling"])
@pytest.mark.parametrize("facts", [{"choices": [stored_choice(())]}, {"prompt_tokens": ()}])
def test_nothing_to_predict_is_no_datum(loss: LossName, facts: dict[str, object]) -> None:
    assert not datums_of(kept({0: Feedback(1.0)}, **facts), loss)


def test_an_answer_whose_log_probabilities_are_not_finite_has_no_ratio() -> None:
    conversation = kept({0: Feedback(1.0)}, choices=[stored_choice((8, 9), (-0.5, -float("inf")))])

    assert not datums_of(conversation, "importance_sampling")
    assert len(datums_of(conversation, "cross_entropy")) == 1
