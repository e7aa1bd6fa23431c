"""Staged copies reuse the memory of an earlier save, and never memory that a save still reads."""

from __future__ import annotations

import pickle

import torch

from chockstone.integrations.dcp import release_buffers
from chockstone.integrations.dcp.staging import WriterStaging


def test_a_copy_uses_the_memory_of_the_one_before() -> None:
    release_buffers()
    state = {"weight": torch.ones(100), "step": 1}
    first = WriterStaging()
    staged = first.stage(state)
    place = staged["weight"].data_ptr()
    first.end()

    state["weight"].fill_(2.0)
    again = WriterStaging().stage(state)

    assert place != state["weight"].data_ptr()
    assert again["weight"].data_ptr() == place
    assert torch.equal(again["weight"], torch.full((100,), 2.0))


def test_a_copy_that_is_in_use_is_not_changed() -> None:
    release_buffers()
    weight = torch.zeros(100)
    one, other = WriterStaging(), WriterStaging()

    staged = []
    for number, staging in enumerate((one, other, one, one)):  # the last two overlap the first, of the same writer
        weight.fill_(float(number))
        staged.append(staging.stage({"weight": weight})["weight"])
    one.end()
    weight.fill_(9.0)
    staged.append(WriterStaging().stage({"weight": weight})["weight"])

    assert [tensor[0].item() for tensor in staged] == [0.0, 1.0, 2.0, 3.0, 9.0]


def test_a_writer_in_another_process_gives_nothing_back() -> None:
    staging = WriterStaging()
    staging.stage({"weight": torch.ones(3)})

    assert vars(pickle.loads(pickle.dumps(staging))) == vars(WriterStaging())
