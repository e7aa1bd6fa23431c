from __future__ import annotations

from chockstone.api.chat.detokenizer import Detokenizer
from chockstone.api.tokenizers.tokenizer_service import TokenTable

ARROW = "→".encode()
TABLE = TokenTable((b"a", ARROW[:1], ARROW[1:], b"ST", b"OP", b"<end>"), {5: "<end>"})


def test_half_a_character_is_held_back() -> None:
    text = Detokenizer(TABLE)

    assert [text.add([0, 1]), text.add([2]), text.finish()] == ["a", "→", ""]


def test_text_ends_before_a_stop_string_that_comes_in_parts() -> None:
    text = Detokenizer(TABLE, stops=["STOP"])

    assert [text.add([0, 3]), text.add([4, 0]), text.finish()] == ["a", "", ""]
    assert text.stop_string == "STOP"


def test_the_beginning_of_a_stop_string_that_does_not_come_is_text() -> None:
    text = Detokenizer(TABLE, stops=["STOP"])

    assert [text.add([3]), text.add([0]), text.add([3]), text.finish()] == ["", "STa", "", "ST"]
    assert text.stop_string is None


def test_special_tokens_are_left_out_unless_they_are_wanted() -> None:
    assert Detokenizer(TABLE).add([0, 5, 99]) == "a"
    assert Detokenizer(TABLE, keep=["<end>"]).add([0, 5]) == "a<end>"
