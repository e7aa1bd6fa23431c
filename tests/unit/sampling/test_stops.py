from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chockstone.sampling.stops import Stops
from chockstone.wire.codecs.samples import SamplingParams
from support.sampling.making import EOS, TOKENIZER

TEXTS: dict[int, str] = {}


def make_stops(*strings: str, tokens: tuple[int, ...] = (), at_eos: bool = False) -> Stops:
    params = SamplingParams(stop_strings=strings, stop_tokens=tokens, stops_at_eos=at_eos)
    return Stops(params, eos_tokens=frozenset({EOS, 299}), tokenizer=TOKENIZER, texts=TEXTS)


def end_of(stops: Stops, tokens: list[int]) -> int | None:
    """How many tokens were taken when the sample stopped."""
    return next((taken for taken in range(1, len(tokens) + 1) if stops.end(tokens[:taken])), None)


def test_a_stop_string_is_found_across_tokens() -> None:
    tokens = TOKENIZER.encode("one two\n\nthree")

    assert end_of(make_stops("\n\n"), tokens) == len("one two\n\n")
    assert end_of(make_stops("wo\n", "zzz"), tokens) == len("one two\n")
    assert end_of(make_stops("four"), tokens) is None


def test_a_character_of_several_tokens_completes_a_stop_string() -> None:
    tokens = TOKENIZER.encode("né → 結び")

    assert end_of(make_stops("→"), tokens) == len("né →".encode())
    assert end_of(make_stops("→ 結"), tokens) == len("né → 結".encode())
    assert end_of(make_stops("é"), tokens) == len("né".encode())


def test_a_special_token_can_be_named_by_its_text() -> None:
    assert end_of(make_stops("<|end|>"), [1, 2, EOS, 3]) == 3


def test_eos_stops_beside_the_stops_of_the_caller() -> None:
    assert end_of(make_stops(at_eos=True), [1, 299, EOS]) == 2
    assert end_of(make_stops(tokens=(7,), at_eos=True), [1, EOS, 7]) == 2
    assert end_of(make_stops(tokens=(7,), at_eos=True), [1, 7, EOS]) == 2
    assert end_of(make_stops("never this", at_eos=True), [1, 299, EOS]) == 2
    assert end_of(make_stops("<|end|>", at_eos=True), [1, EOS, 7]) == 2, "once, though two stops name it"


def test_a_caller_may_ask_for_no_stop_at_all() -> None:
    assert end_of(make_stops(), [1, 299, EOS]) is None


@given(text=st.text(max_size=40), data=st.data())
def test_a_sample_stops_at_the_first_token_that_completes_any_stop(text: str, data: st.DataObject) -> None:
    tokens = TOKENIZER.encode(text)
    cuts = st.integers(0, len(text))
    first, last = sorted((data.draw(cuts), data.draw(cuts)))
    strings = tuple(string for string in (text[first:last], data.draw(st.text(min_size=1, max_size=3))) if string)

    def reads(taken: int) -> str:
        return str(TOKENIZER.decode(tokens[:taken], clean_up_tokenization_spaces=False))

    expected = next((n for n in range(1, len(tokens) + 1) if any(s in reads(n) for s in strings)), None)

    assert end_of(make_stops(*strings), tokens) == expected


def test_decoding_is_spared_where_no_stop_can_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stops = make_stops("stop")
    tokens = TOKENIZER.encode("a b c d e f g")
    end_of(stops, tokens)

    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("decoded")

    monkeypatch.setattr(type(TOKENIZER), "decode", refuse)

    assert end_of(stops, tokens) is None
