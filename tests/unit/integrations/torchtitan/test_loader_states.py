"""Positions of data loaders, of one rank."""

from __future__ import annotations

from support.integrations.need_extra import need_extra

need_extra("torchtitan")

import subprocess  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

# In a process of its own: torchdata warns when it is imported.
CODE = """
from support.integrations.torchtitan_training import Numbers
from torchtitan.components.dataloader import ParallelAwareDataloader
from chockstone.integrations.torchtitan.loader_states import gather_positions, merge_positions, move_to, position_of

loader = ParallelAwareDataloader(Numbers(0), 0, 2, batch_size=2)
batches = iter(loader)
next(batches)
position = gather_positions(loader)
wanted = next(batches)
assert position["world_size"] == 2 and isinstance(position["dp_rank_0"], dict), position
other = ParallelAwareDataloader(Numbers(0), 0, 2, batch_size=2)
move_to(other, merge_positions([position, {"dp_rank_1": {}, "world_size": 2}]))
assert next(iter(other)).equal(wanted)

assert merge_positions([{"a": 1, "world_size": 2}, {"b": 2, "world_size": 2}]) == {"a": 1, "b": 2, "world_size": 2}
assert merge_positions([{"n": 1}, {"n": 2}]) == {"n": 1}
assert merge_positions([None, None]) is None
assert position_of(None) is None
move_to(None, None)
"""


def test_a_position_travels_as_plain_values_and_moves_another_loader_there() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )

    assert done.returncode == 0, done.stderr
