"""What follows a save happens when it is durable, and failures are raised later, once."""

from __future__ import annotations

import threading

import pytest

from chockstone.checkpoints import SaveHandle
from chockstone.checkpoints.errors import SaveAbandoned, SaveFailed
from chockstone.checkpoints.saving.handle import SavedCheckpoint
from chockstone.integrations.background_saves import BackgroundSaves

SAVED = SavedCheckpoint("a", "file:///", 1, 0, 0, 0.0, 0.0)


@pytest.fixture
def saves() -> BackgroundSaves:
    return BackgroundSaves()


def test_what_follows_a_save_happens_when_it_is_durable(saves: BackgroundSaves) -> None:
    done: list[str] = []
    handle = SaveHandle("a")
    ended = saves.add(handle, "a", then=lambda: done.append("then"))
    saves.after_last(lambda: done.append("after"))

    assert done == []
    handle._finish(SAVED)

    assert done == ["then", "after"]
    assert ended.result(0) is None
    saves.wait()
    saves.raise_failed()


def test_what_follows_a_failed_save_never_happens_and_the_failure_is_raised_once(
    saves: BackgroundSaves, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    handle = SaveHandle("a")
    ended = saves.add(handle, "place-1", then=lambda: done.append("then"))
    handle._fail(OSError("no space left"))
    saves.after_last(lambda: done.append("after"))

    assert done == []
    assert isinstance(ended.exception(0), OSError)
    assert "kept because a save failed label=place-1" in caplog.text
    saves.log_failed()
    with pytest.raises(SaveFailed, match="'place-1' failed: no space left"):
        saves.raise_failed()
    saves.raise_failed()


def test_without_a_save_under_way_an_action_happens_at_once(saves: BackgroundSaves) -> None:
    done: list[int] = []
    saves.after_last(lambda: done.append(1))
    handle = SaveHandle("a")
    saves.add(handle, "a")
    handle._fail(OSError())
    saves.forget_last()
    saves.after_last(lambda: done.append(2))

    assert done == [1, 2]


def test_an_abandoned_save_is_no_failure(saves: BackgroundSaves) -> None:
    handle = SaveHandle("a")
    saves.add(handle, "a")
    handle._fail(SaveAbandoned("asked for"))

    saves.raise_failed()


def test_an_error_of_what_follows_is_logged_and_the_save_counts(
    saves: BackgroundSaves, caplog: pytest.LogCaptureFixture
) -> None:
    handle = SaveHandle("a")
    ended = saves.add(handle, "a", then=lambda: 1 / 0)  # type: ignore[arg-type, return-value]  # raises
    handle._finish(SAVED)

    assert ended.result(0) is None
    assert "ZeroDivisionError" in caplog.text


def test_several_failures_are_counted(saves: BackgroundSaves) -> None:
    for name in "abc":
        handle = SaveHandle(name)
        saves.add(handle, name)
        handle._fail(OSError("full"))

    with pytest.raises(SaveFailed, match=r"'a' failed: full\. So did 2 later saves"):
        saves.raise_failed()


def test_a_wait_returns_after_what_follows_the_saves(saves: BackgroundSaves) -> None:
    entered, go_on, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        entered.set()
        go_on.wait(60)
        done.append(1)

    handle = SaveHandle("a")
    saves.add(handle, "a", then=slow)
    writer = threading.Thread(target=lambda: handle._finish(SAVED))
    writer.start()
    entered.wait(60)
    waiter = threading.Thread(target=lambda: (saves.wait(), done.append(2)))
    waiter.start()
    waiter.join(0.05)
    go_on.set()
    writer.join()
    waiter.join()

    assert done == [1, 2]
