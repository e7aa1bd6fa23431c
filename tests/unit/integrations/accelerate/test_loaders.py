"""Loaders: epoch, seed and, where the loader knows it, the position."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader

from chockstone.integrations.accelerate.loaders import LoaderState


@pytest.fixture(autouse=True)
def _fresh_singletons() -> Iterator[None]:
    yield
    for each in (AcceleratorState, PartialState, GradientState):
        each._reset_state()


def prepared(seed: int, **options: bool) -> DataLoader[int]:
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    loader: DataLoader[int] = accelerator.prepare(DataLoader(range(12), batch_size=2, shuffle=True))  # type: ignore[arg-type]  # a range is a dataset
    return loader


def batches(loader: DataLoader[int]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]  # type: ignore[attr-defined]  # a tensor


def test_the_next_epoch_is_shuffled_as_it_would_have_been() -> None:
    alone = prepared(1, use_seedable_sampler=True)
    batches(alone)
    state = LoaderState(alone).state_dict()

    resumed = prepared(2, use_seedable_sampler=True)
    LoaderState(resumed).load_state_dict(state)

    assert batches(resumed) == batches(alone)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # which torchdata calls
def test_a_stateful_loader_continues_where_it_was() -> None:
    pytest.importorskip("torchdata")
    alone = prepared(1, use_seedable_sampler=True, use_stateful_dataloader=True)
    iterator = iter(alone)
    next(iterator)
    state = LoaderState(alone).state_dict()
    rest = [batch.tolist() for batch in iterator]

    resumed = prepared(2, use_seedable_sampler=True, use_stateful_dataloader=True)
    LoaderState(resumed).load_state_dict(state)

    assert batches(resumed) == rest


def test_a_plain_loader_has_nothing_to_restore() -> None:
    loader = DataLoader(range(4))  # type: ignore[arg-type]  # a range is a dataset

    LoaderState(loader).load_state_dict(LoaderState(loader).state_dict())

    assert len(list(loader)) == 4
