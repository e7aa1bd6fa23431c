from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

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


def _cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is completed first; of those that are completed by one token, that begins
    first."""
    for size in range(1, len(text) + 1):
        found = [(text[:size].find(stop), stop) for stop in stops if stop in text[:size]]
        if found:
            place, stop = min(found, key=lambda each: each[0])
            return text[:place], stop
    return text, None


@given(letters=st.text("ab", max_size=40), stops=st.lists(st.text("ab", min_size=1, max_size=6), max_size=4))
def test_the_text_ends_where_a_stop_string_begins_however_they_overlap(letters: str, stops: list[str]) -> None:
    table = TokenTable((b"a", b"b"), {})
    text = Detokenizer(table, stops=stops)

    told = "".join(text.add(["ab".index(letter)]) for letter in letters) + text.finish()

    assert (told, text.stop_string) == _cut(letters, stops)


def test_many_long_stop_strings_do_not_hold_the_event_loop() -> None:
    table = TokenTable((b"a", b"z"), {})
    text = Detokenizer(table, stops=["a" * 9_998 + chr(200 + number) for number in range(255)])
    text.add([0] * 9_997)

    began = time.process_time()
    told = text.add([1])

    assert len(told) == 9_998
    assert time.process_time() - began < 0.2, "of a token"
