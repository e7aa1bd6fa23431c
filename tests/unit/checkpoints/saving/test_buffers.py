from __future__ import annotations

import pytest

from chockstone.checkpoints.saving.buffers import Buffers


def test_a_buffer_is_granted_in_the_order_of_the_tickets() -> None:
    buffers = Buffers(1)
    first, second, third = (buffers.ticket() for _ in range(3))

    buffers.release(first.result())

    assert second.done() and not third.done()
    assert second.result() is first.result()


def test_a_ticket_that_was_given_up_passes_its_buffer_on() -> None:
    buffers = Buffers(1)
    first, second, third = (buffers.ticket() for _ in range(3))

    buffers.give_up(second)
    buffers.give_up(first)

    assert second.cancelled()
    assert third.done()


def test_a_checkpointer_needs_at_least_one_buffer() -> None:
    with pytest.raises(ValueError, match="at least one snapshot"):
        Buffers(0)
