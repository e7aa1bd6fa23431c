from __future__ import annotations

import pytest

from chockstone.api.event_streams import EventStreams, encode_event
from chockstone.engine.config import Busy


def test_an_event_has_an_id_a_type_and_one_line_of_data() -> None:
    assert encode_event(b"[1]", event="points", event_id=7) == b"id: 7\nevent: points\ndata: [1]\n\n"
    assert encode_event(b"{}", event="gone") == b"event: gone\ndata: {}\n\n"


def test_a_user_may_open_so_many_streams() -> None:
    streams = EventStreams(max_streams=3, max_per_user=2)
    with streams.opened("ann"), streams.opened("ann"):
        with pytest.raises(Busy, match="2 event streams of yours are open"):
            streams.refuse_when_full("ann")
        with streams.opened("bob"), pytest.raises(Busy, match="3 event streams are open"):
            streams.refuse_when_full("carl")

    assert len(streams) == 0
    streams.refuse_when_full("ann")


def test_a_stream_that_fails_is_not_counted_any_longer() -> None:
    streams = EventStreams(max_streams=1)
    with pytest.raises(ZeroDivisionError), streams.opened("ann"):
        _ = 1 / 0

    assert len(streams) == 0
