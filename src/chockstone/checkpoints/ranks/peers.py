"""Peers: messages between the ranks of one training while they save or restore together.

The ranks use a process group of their own, over gloo and host memory, so that messages of background threads never
mix with the collectives of the training. Every rank sends to rank 0 and gets its answer from rank 0. So rank 0 knows
which rank is missing and tells the others. JSON and raw bytes travel; nothing is unpickled.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self, TypeVar

from chockstone.checkpoints.errors import CheckpointError, RanksLost
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.checkpoints.ranks.error_codec import decode_error, encode_error

T = TypeVar("T")
Json = dict[str, Any]  # Any: what json.dumps takes
_TEXT: Final = 0
_BYTES: Final = 1  # the tag of exchanged bytes, so that a late rank does not read them as a message
_LOSS_KEY: Final = "lost ranks"  # where rank 0 leaves the list of lost ranks, in the store of torch.distributed
_LOSS_SECONDS: Final = 3.0  # how long the others wait for that list
_SHORTEST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 1.0
_PAUSE_SHARE: Final = 0.02  # of the time waited so far: how late a rank may notice that all are done
_ADVICE: Final = (
    "All ranks must call save, restore and close in the same order; where one process saves for all of them, give "
    'Checkpointer ranks="off". To continue, create a new Checkpointer on every rank.'
)


class PeerFailed(Exception):
    """Another rank failed, so all ranks give the operation up. ``rank`` is the lowest that failed."""

    def __init__(self, failures: Mapping[int, Json]) -> None:
        self.rank, self._encoded = min(failures.items())
        super().__init__(f"rank {self.rank}: {self._encoded['text']}")

    def error(self, *, default: type[CheckpointError]) -> CheckpointError:
        """The error of that rank as the same class, with the rank's number in front of its text."""
        return decode_error({**self._encoded, "text": str(self)}, default=default)


def rank_and_world_size() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed; None unless it is initialised."""
    if "torch.distributed" not in sys.modules:  # so it is not initialised
        return None
    import torch.distributed as distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


class Peers:
    """The connection of this rank to the others. One thread at a time may use it.

    All ranks make the same calls in the same order. Once a rank is lost, every call raises RanksLost.
    """

    def __init__(self, rank: int, world_size: int, *, group: Any, store: Any, timeout_seconds: float) -> None:
        """``group`` and ``store`` are a process group and a key-value store of torch.distributed.

        Messages go through the group object. torch.distributed forgets the group when a program destroys its world, and
        a save in the background must still end.
        """
        self.rank = rank
        self.world_size = world_size
        self._group = group
        self._store = store
        self._timeout_seconds = timeout_seconds
        self._lost: dict[int, str] = {}  # by rank: how it was lost
        self._is_cut_off = False  # gloo closes all connections when one times out
        self._is_over = False  # a rank is lost, and every other rank knows it or will time out
        self._has_ended = False

    @classmethod
    def connect(cls, *, timeout_seconds: float, ranks: tuple[int, ...] | None = None) -> Self | None:
        """Connect to the other ranks of torch.distributed; None where there are none. All ranks must call it.

        ``ranks``: connect these alone, whatever the others do. Ranks of the connection are places in this list.
        """
        found = rank_and_world_size()
        if found is None or found[1] == 1:
            return None
        import torch.distributed as distributed
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        rank, world_size = found
        timeout = timedelta(seconds=timeout_seconds)
        arrivals = PrefixStore("chockstone/arrivals", _get_default_store())
        if ranks is not None:
            arrivals = PrefixStore("/".join(map(str, ranks)), arrivals)
            rank, world_size = ranks.index(rank), len(ranks)
        number = arrivals.add(str(rank), 1)
        store = PrefixStore(f"connection {number}", arrivals)
        group: Any  # as torch.distributed has it
        try:
            if ranks is None:
                group = distributed.new_group(backend="gloo", timeout=timeout)
                store = PrefixStore(f"chockstone/{group.group_name}", _get_default_store())
            else:  # not by new_group: its names differ between ranks that are in different numbers of groups
                group = distributed.ProcessGroupGloo(PrefixStore("gloo", store), rank, world_size, timeout)
        except RuntimeError as error:
            how = str(error)[:300]
            with suppress(RuntimeError):  # the process that serves the store may be gone, too
                missing = [other for other in range(world_size) if arrivals.add(str(other), 0) < number]
                how = "; ".join(f"rank {other}: it did not come in {timeout_seconds:g} s" for other in missing) or how
            raise RanksLost(f"rank {rank} of {world_size} did not find the others. {how}. {_ADVICE}") from error
        return cls(rank, world_size, group=group, store=store, timeout_seconds=timeout_seconds)

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def is_over(self) -> bool:
        """Whether a rank is lost, so that no call can succeed any more."""
        return self._is_over

    def gather_and_decide(
        self,
        contribution: Json | None = None,
        decide: Callable[[list[Json]], Json] = lambda _: {},
        *,
        error: BaseException | None = None,
    ) -> Json:
        """Send each rank's contribution to rank 0, which calls ``decide`` on all of them; every rank gets its result.

        With an ``error`` on any rank nothing is decided: that rank raises it, and all others raise PeerFailed. The same
        happens when ``decide`` raises. A rank that is lost while rank 0 answers is noticed by the next call.
        """
        if self._is_over:
            raise self._lost_error() from error
        if error is None and self._lost:
            error = self._lost_error()  # noticed in an exchange; rank 0 may not know
        message: Json = {"contribution": contribution or {}} if error is None else {"error": encode_error(error)}
        if not self.is_leader:
            return self._ask_leader(message, error)
        failures: dict[int, Json] = {}
        contributions: list[Json] = []
        for rank, received in enumerate([message, *self._receive_all()]):
            contributions.append(received.get("contribution", {}))
            if "error" in received:
                failures[rank] = received["error"]
        answer: Json = {}
        if not failures:
            try:
                answer = decide(contributions)
            except BaseException as raised:  # noqa: BLE001  # raised below, after the others got it
                error, failures = raised, {0: encode_error(raised)}
        sent = self._send_to_all({"failures": [*failures.items()]} if failures else {"answer": answer})
        if error is not None:
            raise error
        if failures:
            raise PeerFailed(failures)
        return dict(sent["answer"])

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Mapping[int, Bytes]) -> bool:
        """Send bytes to some ranks and receive bytes of others into memory; whether everything was received.

        A loss is not raised here, because other ranks still need what this one sends. The next ``gather_and_decide``
        raises it.
        """
        import torch

        works: list[tuple[int, Any]] = []
        for rank, memory in incoming.items():
            post = partial(self._group.recv, [torch.from_numpy(memory)], rank, _BYTES)
            works.append((rank, self._guarded(rank, post)))
        for rank, content in outgoing.items():
            post = partial(self._group.send, [torch.from_numpy(content)], rank, _BYTES)
            works.append((rank, self._guarded(rank, post)))
        for rank, work in works:
            self._guarded(rank, partial(_finish, work, self._timeout(1)))
        return not self._is_cut_off and not self._lost.keys() & incoming.keys()

    def close(self) -> None:
        """Disconnect. Ranks that still wait for this one count it as lost. Harmless when called twice."""
        import torch.distributed as distributed

        if self._group is None:
            return  # torch would take no group for the world of the training
        self._lost[self.rank] = "it is closed"
        self._is_cut_off = self._is_over = True
        if distributed.is_initialized():
            with suppress(ValueError, AssertionError, RuntimeError):  # gone already, with the world
                distributed.destroy_process_group(self._group)
        self._group = None  # the connections go with it

    def _receive_all(self) -> list[Json]:
        """On rank 0: the message of each other rank."""
        messages = [self._guarded(rank, partial(self._receive, rank, timeouts=1)) for rank in range(1, self.world_size)]
        if self._lost:
            raise self._end_with_loss()
        return [message for message in messages if message is not None]

    def _send_to_all(self, answer: Json) -> Json:
        """Send the answer to all other ranks; returns it as JSON gives it back to them."""
        content = json.dumps(answer).encode()
        for rank in range(1, self.world_size):
            self._guarded(rank, partial(self._send, rank, content, timeouts=1))
        sent: Json = json.loads(content)
        return sent

    def _ask_leader(self, message: Json, error: BaseException | None) -> Json:
        # Wait longer than rank 0 waits for the others: its answer says which rank is missing.
        self._guarded(0, partial(self._send, 0, json.dumps(message).encode(), timeouts=2))
        answer = self._guarded(0, partial(self._receive, 0, timeouts=2))
        if answer is None:
            raise self._end_with_loss() from error
        if "lost" in answer:
            self._lost |= {int(rank): how for rank, how in answer["lost"]}
            raise self._end_with_loss() from error
        if "failures" not in answer:
            return dict(answer["answer"])
        if error is not None:
            raise error
        raise PeerFailed({int(rank): encoded for rank, encoded in answer["failures"]})

    def _end_with_loss(self) -> RanksLost:
        """The error to raise. Rank 0 first sends the list of lost ranks to the others, in both ways that it has."""
        self._is_over = True
        if self.is_leader:
            lost = [*self._lost.items()]
            with suppress(RuntimeError):  # the process that serves the store may be gone, too
                self._store.set(_LOSS_KEY, json.dumps(lost))
            self._send_to_all({"lost": lost})
        elif 0 in self._lost and not self._has_ended:
            with suppress(RuntimeError, ValueError):
                self._store.wait([_LOSS_KEY], timedelta(seconds=_LOSS_SECONDS))
                self._lost = {int(rank): how for rank, how in json.loads(self._store.get(_LOSS_KEY))}
        self._has_ended = True
        return self._lost_error()

    def _lost_error(self) -> RanksLost:
        named = "; ".join(f"rank {rank}: {how}" for rank, how in sorted(self._lost.items()))
        return RanksLost(f"rank {self.rank} of {self.world_size} cannot continue with the others. {named}. {_ADVICE}")

    def _guarded(self, rank: int, act: Callable[[], T]) -> T | None:
        """The result of ``act``, which talks to that rank; None if the rank is lost, now or before."""
        if self._is_cut_off or rank in self._lost:
            return None
        try:
            return act()
        except RuntimeError as error:
            self._is_cut_off = is_gloo_timeout(error)
            silent = f"it said nothing for {self._timeout_seconds:g} s"
            self._lost[rank] = silent if self._is_cut_off else f"its connection is closed ({_gloo_summary(error)})"
            return None

    def _send(self, rank: int, content: bytes, *, timeouts: int) -> None:
        import torch

        size = torch.tensor([len(content)], dtype=torch.int64)
        for part in (size, torch.frombuffer(bytearray(content), dtype=torch.uint8)):
            self._group.send([part], rank, _TEXT).wait(self._timeout(timeouts))

    def _receive(self, rank: int, *, timeouts: int) -> Json:
        import torch

        size = torch.zeros(1, dtype=torch.int64)
        self._group.recv([size], rank, _TEXT).wait(self._timeout(timeouts))
        content = torch.empty(int(size.item()), dtype=torch.uint8)
        self._group.recv([content], rank, _TEXT).wait(self._timeout(timeouts))
        message: Json = json.loads(content.numpy().tobytes())
        return message

    def _timeout(self, times: int) -> timedelta:
        return timedelta(seconds=self._timeout_seconds * times + (times - 1) * _LOSS_SECONDS)


def poll_seconds(since: float) -> float:
    """The pause between two polls of ranks that have waited for each other since then: a small share of that time."""
    return min(max(_PAUSE_SHARE * (time.monotonic() - since), _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)


def _finish(work: Any, timeout: timedelta) -> None:
    if work is not None:  # None: its rank was lost before
        work.wait(timeout)


def is_gloo_timeout(error: RuntimeError) -> bool:
    """Whether gloo gave up waiting. It raises RuntimeError for everything and says so in its text alone."""
    return "imed out" in str(error)


def _gloo_summary(error: RuntimeError) -> str:
    """The first sentence of gloo's text, without the place in its source before and the guesses at causes after it."""
    return str(error).partition("] ")[2].partition(". ")[0][:120] or str(error)[:120]
