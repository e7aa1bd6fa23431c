from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from chockstone.backends.training.packing.families import Content
from chockstone.backends.training.packing.layout import PackedBatch, pack

CPU = torch.device("cpu")
PROMPT = list(range(100, 120))


def content(tokens: list[int]) -> Content:
    return np.array([tokens, tokens], dtype=np.int64).T


def lay_out(*sequences: list[int]) -> PackedBatch:
    return pack([content(tokens) for tokens in sequences], CPU)


def test_sequences_of_one_length_need_no_copies() -> None:
    batch = lay_out([1, 2, 3], [4, 5, 6])

    assert batch.tokens_F.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.positions_F.tolist() == [0, 1, 2, 0, 1, 2]
    assert batch.rows_R is None
    assert batch.sources_P is None
    assert [(block.sequences, block.width) for block in batch.blocks] == [(2, 3)]


def test_a_shared_beginning_is_there_once() -> None:
    batch = lay_out([*PROMPT, 1], [*PROMPT, 2, 3], [9, 8])

    assert batch.tokens_F.tolist() == [*PROMPT, 2, 3, 1, 9, 8]
    assert batch.positions_F.tolist() == [*range(22), 20, 0, 1]
    assert batch.rows_R is not None
    assert batch.tokens_F[batch.rows_R].tolist() == [*PROMPT, 1, *PROMPT, 2, 3, 9, 8]
    (prefix,) = batch.prefixes
    assert (prefix.flat_start, prefix.length, prefix.first, prefix.last) == (0, 20, 1, 2)


def test_lengths_far_apart_attend_in_blocks_of_their_own() -> None:
    batch = lay_out(*([length] * length for length in (200, 190, 100, 60, 5)))

    assert [(block.sequences, block.width) for block in batch.blocks] == [(2, 200), (1, 100), (2, 60)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 90), st.integers(1, 90)), min_size=1, max_size=9))
def test_every_sequence_is_whole_in_its_block(drawn: list[tuple[int, int, int]]) -> None:
    contents = [content([7] * shared + [branch + 1] * own) for branch, shared, own in drawn]

    batch = pack(contents, CPU)

    rows = torch.arange(len(batch.tokens_F)) if batch.rows_R is None else batch.rows_R
    sources = torch.arange(len(batch.tokens_F)) if batch.sources_P is None else batch.sources_P
    assert batch.tokens_F[rows].tolist() == [int(token) for each in contents for token in each[:, 0]]
    assert batch.positions_F[rows].tolist() == [place for each in contents for place in range(len(each))]
    assert sources[batch.places_F].tolist() == list(range(len(batch.tokens_F)))
    assert batch.positions_F[: batch.longest].tolist() == list(range(max(map(len, contents))))
    for block in batch.blocks:
        for number in range(block.sequences):
            begin = block.start + number * block.width
            positions = batch.positions_F[sources[begin : begin + block.width]].tolist()
            length = max(positions) + 1
            assert positions == [*range(length), *[0] * (block.width - length)]
