from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.mapped_files import MappedFile
from chockstone.integrations.formats.reading.single_files import read_torch
from support.integrations.foreign import same, trained


def test_the_state_dict_of_a_module_is_stored_as_the_model(tmp_path: Path) -> None:
    module, _ = trained()
    torch.save(module.state_dict(), tmp_path / "step_40.pt")

    found = read_torch(MappedFile.open(tmp_path / "step_40.pt"))

    assert same(found.state["model"], module.state_dict())
    assert (found.step, found.step_source) == (40, "the name 'step_40.pt'")


def test_a_plain_dict_keeps_its_keys(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1), "b": torch.zeros(1), "step": 7}, tmp_path / "a.pt")

    found = read_torch(MappedFile.open(tmp_path / "a.pt"))

    assert list(found.state) == ["a", "b", "step"]
    assert found.step == 7


@pytest.mark.parametrize("value", [torch.ones(2), [1, 2], {1: 2}])
def test_what_is_no_dict_of_names_is_refused(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "a.pt")

    with pytest.raises(ImportRefused, match="a dict of names"):
        read_torch(MappedFile.open(tmp_path / "a.pt"))
