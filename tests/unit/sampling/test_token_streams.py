"""Tokens of streamed requests, taken between the steps of a sampler."""

from __future__ import annotations

from collections import defaultdict

from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.sampled_pieces import SampledPiece
from support.sampling.making import Served, random_prompt, request, result_of


def run(sampler: Sampler) -> tuple[dict[str, list[SampledPiece]], dict[str, list[list[int]]]]:
    """The pieces and the results of all requests, with a piece taken after each step."""
    pieces: dict[str, list[SampledPiece]] = defaultdict(list)
    results: dict[str, list[list[int]]] = {}
    while sampler.has_work():
        for finished in sampler.step():
            results[finished.key] = [each.tokens.tolist() for each in result_of(finished.outcome).sequences]
        for key, piece in sampler.take_pieces():
            pieces[key].append(piece)
    return pieces, results


def test_pieces_are_the_beginning_of_the_result(fused: Served) -> None:
    sampler = Sampler()
    sampler.add("a", fused.sampled, None, request(random_prompt(5), 3, max_tokens=9), seed=1, is_streamed=True)

    pieces, results = run(sampler)

    for number, tokens in enumerate(results["a"]):
        mine = [piece for piece in pieces["a"] if piece.choice == number]
        sent = [token for piece in mine for token in piece.tokens]
        assert sent == tokens[: len(sent)] and len(sent) >= len(tokens) - 1
        assert [piece.start for piece in mine] == [sum(len(p.tokens) for p in mine[:n]) for n in range(len(mine))]
        assert all(len(piece.logprobs) == len(piece.tokens) for piece in mine)


def test_a_sequence_that_ends_before_the_others_says_why(fused: Served) -> None:
    sampler = Sampler(max_sequences=1)  # the second starts when the first has ended
    sampler.add("a", fused.sampled, None, request(random_prompt(5), 2, max_tokens=4), seed=1, is_streamed=True)

    pieces, results = run(sampler)

    first = [piece for piece in pieces["a"] if piece.choice == 0]
    assert [piece.stop_reason for piece in first][:-1] == [None] * (len(first) - 1)
    assert first[-1].stop_reason in ("stop", "length")
    assert [token for piece in first for token in piece.tokens] == results["a"][0]


def test_requests_that_are_not_streamed_have_no_pieces_and_the_same_tokens(fused: Served) -> None:
    sampler = Sampler()
    ask = request(random_prompt(5), 2, max_tokens=6)
    sampler.add("plain", fused.sampled, None, ask, seed=1)
    assert not sampler.has_streams
    sampler.add("streamed", fused.sampled, None, ask, seed=1, is_streamed=True)

    pieces, results = run(sampler)

    assert set(pieces) == {"streamed"}
    assert results["plain"] == results["streamed"]
    assert not sampler.has_streams


def test_a_cancelled_request_is_not_streamed_any_more(fused: Served) -> None:
    sampler = Sampler()
    sampler.add("a", fused.sampled, None, request(random_prompt(5), max_tokens=50), seed=1, is_streamed=True)
    for _ in range(3):
        sampler.step()

    sampler.cancel("a")

    assert (sampler.has_streams, sampler.take_pieces(), sampler.activity().sequences) == (False, [], 0)
