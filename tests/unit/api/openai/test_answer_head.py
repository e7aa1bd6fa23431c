from __future__ import annotations

from pathlib import Path

from chockstone.api.chat.served_model import NamedModel
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.engine.samples.sampling import SamplerSource


def model_of(seal: str | None) -> NamedModel:
    source = SamplerSource("", "ann", "tiny", None if seal is None else "archive", seal)
    return NamedModel("prod", source, None, None, Path("."), None)


def test_the_fingerprint_is_that_of_the_weights() -> None:
    first, again = (AnswerHead.make("chatcmpl-", model_of("a" * 64)) for _ in range(2))

    assert first.answer_id != again.answer_id
    assert first.fingerprint == again.fingerprint == "fp_" + "a" * 16
    assert AnswerHead.make("chatcmpl-", model_of(None)).fingerprint is None
    assert first.to_json("chat.completion")["model"] == "prod"


def test_ids_of_calls_and_items_stay_the_same() -> None:
    head = AnswerHead("resp_abc", "prod", 0, None)

    assert (head.call_id(0, 1), head.item_id("msg", 2)) == ("call_abc_0_1", "msg_abc_2")
