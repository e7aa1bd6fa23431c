"""Any JSON in the place of a field gives a request or a refusal, and importing the room loads nothing heavy."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.wire.failures import BadRequest
from support.wire.sdk import read_request, sent
from unit.wire.messages import (
    test_futures,
    test_models,
    test_sampling_sessions,
    test_service,
    test_sessions,
    test_training,
    test_weights,
)

PATH = "tinker://s:train:0/weights/final"
REQUESTS = [
    *test_service.REQUESTS,
    *test_sessions.REQUESTS,
    *test_models.REQUESTS,
    *test_training.REQUESTS,
    *test_weights.REQUESTS,
    *test_sampling_sessions.REQUESTS,
    *test_futures.REQUESTS,
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(PATH),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(derandomize=True, deadline=None, max_examples=250)
@given(st.data())
def test_any_json_gives_a_request_or_a_refusal(data: st.DataObject) -> None:
    request_type, theirs = data.draw(st.sampled_from(REQUESTS))
    body = sent(theirs)
    holder = body
    while True:
        name = data.draw(st.sampled_from(sorted(holder)))
        if isinstance(holder[name], dict) and holder[name] and data.draw(st.booleans()):
            holder = holder[name]
            continue
        holder[name] = data.draw(JSON)
        break

    with contextlib.suppress(BadRequest):
        read_request(request_type, body)


def test_importing_the_room_loads_nothing_heavy() -> None:
    codecs = "messages_pb2 pass_request pass_result sample_request sample_result compression"
    modules = [f"codecs.{name}" for name in codecs.split()] + ["paths", "messages.schema", "messages.sessions"]
    code = f"import sys, {', '.join(f'chockstone.wire.{name}' for name in modules)}; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"torch", "tinker", "fastapi", "sqlalchemy", "transformers"}.isdisjoint(loaded)
