"""Timed work: the steps of a call, with a reply that says for how many seconds they have computed."""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from chockstone.backends.protocol import PassReply, StepReply

ReplyOfWork = TypeVar("ReplyOfWork", covariant=True)
TimedReply = TypeVar("TimedReply", PassReply, StepReply)
Work = Generator["Future[Any] | None", None, ReplyOfWork]  # Any: whatever is waited for


def timed(work: Work[TimedReply]) -> Work[TimedReply]:
    """The work, with a reply that also says for how many seconds it has computed."""
    seconds = 0.0
    while True:
        started = time.perf_counter()
        try:
            awaited = next(work)
        except StopIteration as ended:
            reply: TimedReply = ended.value
            seconds += time.perf_counter() - started
            return replace(reply, seconds=seconds)
        seconds += time.perf_counter() - started
        yield awaited
