from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chockstone.backends.supervision.process import PROMOTION
from chockstone.backends.worker import promotion
from chockstone.backends.worker.promotion import import_architecture, wait_for_promotion

ARCHITECTURE = "stablelm"  # no other test imports it


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def oom_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "oom_score_adj"
    path.write_text("-100\n")
    monkeypatch.setattr(promotion, "_OOM_SCORE", path)
    return path


def test_a_spare_waits_for_its_promotion_and_reads_no_more_than_that(
    channel: tuple[socket.socket, socket.socket], oom_score: Path
) -> None:
    ours, theirs = channel
    ours.sendall(PROMOTION + b"message")

    assert wait_for_promotion(theirs, []) is True
    assert theirs.recv(16) == b"message"
    assert oom_score.read_text() == "-100\n"


def test_a_spare_whose_server_is_gone_is_not_promoted(
    channel: tuple[socket.socket, socket.socket], oom_score: Path
) -> None:
    ours, theirs = channel
    ours.close()

    assert wait_for_promotion(theirs, []) is False


def test_the_kernel_kills_a_spare_that_waits_before_others(
    channel: tuple[socket.socket, socket.socket], oom_score: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = channel
    ours.sendall(PROMOTION)
    seen: list[str] = []
    monkeypatch.setattr(promotion, "import_architecture", lambda _: seen.append(oom_score.read_text()))

    wait_for_promotion(theirs, ["model"])

    assert seen == ["1000"]


def test_where_the_kernel_has_no_such_score_a_spare_waits_all_the_same(
    channel: tuple[socket.socket, socket.socket], oom_score: Path
) -> None:
    ours, theirs = channel
    oom_score.unlink()
    ours.sendall(PROMOTION)

    assert wait_for_promotion(theirs, []) is True
    assert not oom_score.exists()


def test_the_code_of_a_model_is_imported_without_its_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": ARCHITECTURE}))
    module = f"transformers.models.{ARCHITECTURE}.modeling_{ARCHITECTURE}"
    assert module not in sys.modules

    import_architecture(tmp_path)

    assert module in sys.modules


def test_a_model_that_cannot_be_read_does_not_end_a_spare(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")

    import_architecture(tmp_path)
    import_architecture(tmp_path / "missing")
