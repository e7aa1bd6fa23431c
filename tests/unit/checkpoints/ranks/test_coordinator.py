from __future__ import annotations

from typing import Any

import pytest

from chockstone.checkpoints.ranks.coordinator import RankCoordinator


@pytest.mark.parametrize(
    "arguments",
    [{"ranks": "some", "timeout_seconds": 1.0}, {"ranks": "auto", "timeout_seconds": 0.0}],
    ids=["ranks", "timeout"],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ranks=|rank_timeout_seconds="):
        RankCoordinator(**arguments)


@pytest.mark.parametrize("ranks", ["auto", "off"])
def test_a_process_without_peers_coordinates_nothing(ranks: Any) -> None:
    coordinator = RankCoordinator(ranks=ranks, timeout_seconds=1.0)

    assert not coordinator.connect()
    assert not coordinator.has_peers
    assert coordinator.rank_arguments() == {}
    coordinator.close()
