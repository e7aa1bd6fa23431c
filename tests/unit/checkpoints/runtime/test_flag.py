from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from chockstone.checkpoints.runtime.flag import Flag
from chockstone.checkpoints.saving.handle import SaveHandle


def test_it_is_raised_for_good_and_lets_everybody_go() -> None:
    flag = Flag()
    waiters = [threading.Thread(target=flag.wait, args=[60]) for _ in range(8)]
    for waiter in waiters:
        waiter.start()
    assert not flag.is_set()

    flag.set()
    flag.set()

    for waiter in waiters:
        waiter.join(30)
    assert flag.is_set() and not any(waiter.is_alive() for waiter in waiters)
    flag.wait(60)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
def test_it_is_waited_for_no_longer_than_was_said(seconds: float) -> None:
    flag = Flag()

    flag.wait(seconds)

    assert not flag.is_set()


def test_an_interrupt_while_a_save_is_hurried_does_not_keep_it_from_being_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it would take a lock with it: between having that and knowing so."""
    enter = threading.Condition.__enter__

    def interrupted(condition: threading.Condition) -> bool:
        enter(condition)
        raise KeyboardInterrupt

    handle = SaveHandle("a")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__enter__", interrupted)
        with suppress(KeyboardInterrupt):
            handle.hurry()

    abandoning = threading.Thread(target=handle.abandon, daemon=True)
    abandoning.start()
    abandoning.join(10)
    assert handle.is_abandoned() and not abandoning.is_alive()
