from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chockstone.checkpoints.errors import DigestMismatch, SaveFailed
from chockstone.checkpoints.ranks.error_codec import encode_error
from chockstone.checkpoints.ranks.peers import PeerFailed, is_gloo_timeout, poll_seconds
from support.checkpoints.gloo import errors_of_gloo

if TYPE_CHECKING:
    from support.rank_pool import RankPool


def test_the_errors_of_gloo_are_told_apart() -> None:
    """As the installed gloo words them: a peer that is silent, and one whose connection is closed."""
    timeout, closed = errors_of_gloo()

    assert is_gloo_timeout(timeout)
    assert not is_gloo_timeout(closed)


@pytest.mark.parametrize(
    ("text", "is_timeout"),
    [
        ("[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete", True),
        ("Application timeout caused pair closure: send timed out", True),
        ("[../gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:4711", False),
    ],
)
def test_a_timeout_of_gloo_is_known_by_its_text(text: str, is_timeout: bool) -> None:
    assert is_gloo_timeout(RuntimeError(text)) is is_timeout


def test_the_failure_of_the_lowest_rank_is_raised_as_its_own_class() -> None:
    failures = {3: encode_error(SaveFailed("full")), 1: encode_error(DigestMismatch("block 7 differs"))}

    failed = PeerFailed(failures)
    error = failed.error(default=SaveFailed)

    assert failed.rank == 1
    assert type(error) is DigestMismatch
    assert str(error) == "rank 1: block 7 differs"


def test_an_error_of_another_library_is_raised_as_the_default() -> None:
    error = PeerFailed({2: encode_error(OSError("away"))}).error(default=SaveFailed)

    assert type(error) is SaveFailed
    assert str(error) == "rank 2: OSError: away"


def test_ranks_poll_less_often_the_longer_they_wait() -> None:
    now = time.monotonic()

    assert poll_seconds(now) == pytest.approx(0.005)
    assert 0.1 < poll_seconds(now - 10) < 0.4
    assert poll_seconds(now - 1000) == 1.0


def test_closing_twice_leaves_the_process_group_of_the_training_alone(ranks: RankPool, tmp_path: Path) -> None:
    from support.checkpoints import ranked_jobs  # late: it imports torch

    assert ranks.run(2, ranked_jobs.close_twice, tmp_path) == [True, True]
