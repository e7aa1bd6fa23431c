from __future__ import annotations

import numpy as np
import pytest
import torch

from chockstone.backends.channel import Message
from chockstone.backends.training.process_group import SINGLE_PROCESS, ProcessGroup
from chockstone.wire.failures import BadRequest

GROUP: ProcessGroup = SINGLE_PROCESS


def test_a_single_process_leads_itself() -> None:
    assert (GROUP.rank, GROUP.size) == (0, 1)
    GROUP.announce_call(Message())
    GROUP.announce_turn(None)
    GROUP.announce_end()


def test_a_single_process_has_what_all_processes_have() -> None:
    tensor, array = torch.arange(3.0), np.arange(3)

    GROUP.sum_in_place(tensor)

    assert tensor.tolist() == [0.0, 1.0, 2.0]
    assert GROUP.gather(tensor, [3]) == [tensor]
    assert GROUP.broadcast_arrays(array) == (array,)
    assert GROUP.leaders_answer(True) and not GROUP.leaders_answer(False)


def test_a_single_process_raises_its_own_error_and_survives_any() -> None:
    GROUP.raise_together(None)
    with pytest.raises(BadRequest, match="no"):
        GROUP.raise_together(BadRequest("no"))
    GROUP.abort(RuntimeError("no"))
