from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.trainers import ConversationsClient, ConversationsRefused, read_datums
from support.cli.loopback import Loopback, serve_on_loopback
from support.engine.stored_answers import stored_answer, stored_choice


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Loopback]:
    with serve_on_loopback(tmp_path / "home") as loopback:
        yield loopback


@pytest.fixture
def client(asked: Loopback) -> Iterator[ConversationsClient]:
    with ConversationsClient(asked.url, "tml-local") as client:
        yield client


def keep(asked: Loopback, **facts: Any) -> str:
    conversations = asked.served.app.state.context.engine.conversations
    return str(asked.wait(conversations.keep(stored_answer("local", **facts))))


def test_an_answer_is_rewarded_corrected_exported_and_deleted(asked: Loopback, client: ConversationsClient) -> None:
    logprobs = np.random.default_rng(0).normal(size=50).astype(np.float32)
    kept = keep(asked, choices=[stored_choice((7,) * 50, tuple(logprobs.tolist()))])
    assert client.datums() == []

    client.reward(kept, 0.5)
    client.correct(kept, tokens=[1, 2])

    (sampled,) = client.datums()
    (corrected,) = client.datums("cross_entropy", min_reward=0.5, model="prod")
    assert (sampled.conversation_id, sampled.reward, sampled.is_corrected) == (kept, 0.5, False)
    assert sampled.datum.loss_fn_inputs["logprobs"].to_numpy()[2:].tobytes() == logprobs.tobytes()
    assert corrected.is_corrected
    assert corrected.datum.loss_fn_inputs["target_tokens"].tolist() == [6, 7, 1, 2]
    assert client.datums(after=kept) == []

    client.delete(kept)
    with pytest.raises(ConversationsRefused, match="404: .*not yours or not there"):
        client.delete(kept)


def test_a_file_of_the_command_line_is_read(asked: Loopback, client: ConversationsClient, tmp_path: Path) -> None:
    client.reward(keep(asked), 1.0)
    asked.run("conversations", "export", tmp_path / "datums.jsonl")

    (written,), (asked_for,) = read_datums(tmp_path / "datums.jsonl"), client.datums()
    assert (written.conversation_id, written.reward) == (asked_for.conversation_id, 1.0)
    for name, each in asked_for.datum.loss_fn_inputs.items():
        assert written.datum.loss_fn_inputs[name].tolist() == each.tolist()


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"conversation_id": 1}'])
def test_a_line_that_is_no_datum_is_refused(line: str) -> None:
    with pytest.raises(ConversationsRefused, match="is no line of an export"):
        read_datums([line])


def test_a_refusal_says_why(asked: Loopback, client: ConversationsClient) -> None:
    kept = keep(asked, choices=[stored_choice(), stored_choice()])

    with pytest.raises(ConversationsRefused, match="has 2 choices; say which"):
        client.reward(kept, 1.0)
    with (
        pytest.raises(ConversationsRefused, match="did not answer"),
        ConversationsClient("http://127.0.0.1:9", "tml-local") as nowhere,
    ):
        nowhere.datums()
