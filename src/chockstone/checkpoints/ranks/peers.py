"""Peers: the ranks of one training, and how they speak to each other when they save or restore together.

They have a process group of their own, over gloo and host memory, so that what background threads say never comes
between the collectives of the training. Rank 0 hears all and answers all: so it knows who is missing, and tells the
others. JSON and raw bytes travel; nothing is unpickled.
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
_BYTES: Final = 1  # the tag of what is exchanged; should a rank miss that, it must not be taken for words
_WORDS: Final = "last words"
_WORDS_SECONDS: Final = 3.0  # to wait for those of rank 0, which says them before others can miss it
_SHORTEST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 1.0
_PAUSE_SHARE: Final = 0.02  # of the time so far: what the last to be done may be kept waiting
_ADVICE: Final = (
    "All ranks must call save, restore and close in the same order; where one process saves for all of them, give "
    'Checkpointer ranks="off". Whoever goes on needs a new Checkpointer on every rank.'
)


class PeerFailed(Exception):
    """Another rank could not do its part, so none does."""

    def __init__(self, failures: Mapping[int, Json]) -> None:
        self.rank, self._told = min(failures.items())
        super().__init__(f"rank {self.rank}: {self._told['text']}")

    def error(self, *, otherwise: type[CheckpointError]) -> CheckpointError:
        """As an error of the same kind as on that rank, with its number in front."""
        return decode_error({**self._told, "text": str(self)}, otherwise=otherwise)


def find_place() -> tuple[int, int] | None:
    """Rank and size of the world to torch.distributed, if it is initialised."""
    if "torch.distributed" not in sys.modules:  # then nobody has
        return None
    import torch.distributed as distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


class Peers:
    """This rank among the others. For one thread at a time; all ranks make the same calls in the same order.

    Once one of them is lost, every call raises RanksLost.
    """

    def __init__(self, rank: int, world_size: int, *, group: Any, words: Any, timeout_seconds: float) -> None:
        """``group`` and ``words`` are a process group and a key-value store of torch.distributed.

        The group is asked itself and not through torch.distributed, which forgets it when a program destroys its world;
        a save in the background goes on all the same.
        """
        self.rank = rank
        self.world_size = world_size
        self._group = group
        self._words = words
        self._timeout_seconds = timeout_seconds
        self._lost: dict[int, str] = {}  # and how
        self._is_cut_off = False  # gloo closes all connections when one times out
        self._is_over = False  # whether all know of a loss, or will find out by themselves
        self._has_given_up = False

    @classmethod
    def meet(cls, *, timeout_seconds: float) -> Self | None:
        """Meet the other ranks of torch.distributed; None where there are none. Call it on all of them alike."""
        place = find_place()
        if place is None or place[1] == 1:
            return None
        import torch.distributed as distributed
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        rank, world_size = place
        arrivals = PrefixStore("chockstone/arrivals", _get_default_store())
        number = arrivals.add(str(rank), 1)
        try:
            group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
        except RuntimeError as error:
            how = str(error)[:300]
            with suppress(RuntimeError):  # whoever keeps the arrivals may be gone, too
                missing = [other for other in range(world_size) if arrivals.add(str(other), 0) < number]
                how = "; ".join(f"rank {other}: it did not come in {timeout_seconds:g} s" for other in missing) or how
            raise RanksLost(f"rank {rank} of {world_size} did not find the others. {how}. {_ADVICE}") from error
        words = PrefixStore(f"chockstone/{group.group_name}", _get_default_store())
        return cls(rank, world_size, group=group, words=words, timeout_seconds=timeout_seconds)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def confer(
        self,
        said: Json | None = None,
        decide: Callable[[list[Json]], Json] = lambda _: {},
        *,
        error: BaseException | None = None,
    ) -> Json:
        """Every rank says something; ``decide`` on rank 0 makes an answer of it; all get the answer.

        With an ``error`` on any rank nothing is decided: that rank raises it, all others raise PeerFailed. So they do
        when ``decide`` raises. Whoever is lost while rank 0 answers is missed at the next call.
        """
        if self._is_over:
            raise self._loss() from error
        if error is None and self._lost:
            error = self._loss()  # met with in an exchange; rank 0 may not know
        message: Json = {"said": said or {}} if error is None else {"error": encode_error(error)}
        if not self.leads:
            return self._hear(message, error)
        failures: dict[int, Json] = {}
        heard: list[Json] = []
        for rank, words in enumerate([message, *self._gather()]):
            heard.append(words.get("said", {}))
            if "error" in words:
                failures[rank] = words["error"]
        answer: Json = {}
        if not failures:
            try:
                answer = decide(heard)
            except BaseException as trouble:  # noqa: BLE001  # raised below, when the others have been told
                error, failures = trouble, {0: encode_error(trouble)}
        told = self._answer({"failures": [*failures.items()]} if failures else {"answer": answer})
        if error is not None:
            raise error
        if failures:
            raise PeerFailed(failures)
        return dict(told["answer"])

    def exchange(self, outgoing: Mapping[int, Bytes], incoming: Mapping[int, Bytes]) -> bool:
        """Send bytes to some ranks and fill memory with those of others; whether nobody was lost who should have sent.

        A loss is not raised here: others count on what this rank has for them, and hear of it when they confer.
        """
        import torch

        works: list[tuple[int, Any]] = []
        for rank, place in incoming.items():
            post = partial(self._group.recv, [torch.from_numpy(place)], rank, _BYTES)
            works.append((rank, self._with(rank, post)))
        for rank, content in outgoing.items():
            post = partial(self._group.send, [torch.from_numpy(content)], rank, _BYTES)
            works.append((rank, self._with(rank, post)))
        for rank, work in works:
            self._with(rank, partial(_finish, work, self._patience(1)))
        return not self._is_cut_off and not self._lost.keys() & incoming.keys()

    def close(self) -> None:
        """Part from the others. To them this rank is lost, should they still wait for it."""
        import torch.distributed as distributed

        self._lost[self.rank] = "it is closed"
        self._is_cut_off = self._is_over = True
        if distributed.is_initialized():
            with suppress(ValueError, AssertionError, RuntimeError):  # gone already, with the world
                distributed.destroy_process_group(self._group)
        self._group = None  # the connections go with it

    def _gather(self) -> list[Json]:
        """On rank 0: what each of the others says."""
        heard = [self._with(rank, partial(self._receive, rank, patience=1)) for rank in range(1, self.world_size)]
        if self._lost:
            raise self._give_up()
        return [words for words in heard if words is not None]

    def _answer(self, answer: Json) -> Json:
        """Tell all others; what they hear of it."""
        content = json.dumps(answer).encode()
        for rank in range(1, self.world_size):
            self._with(rank, partial(self._send, rank, content, patience=1))
        heard: Json = json.loads(content)
        return heard

    def _hear(self, message: Json, error: BaseException | None) -> Json:
        # Longer than rank 0 waits for others, to hear from it who is missing.
        self._with(0, partial(self._send, 0, json.dumps(message).encode(), patience=2))
        answer = self._with(0, partial(self._receive, 0, patience=2))
        if answer is None:
            raise self._give_up() from error
        if "lost" in answer:
            self._lost |= {int(rank): how for rank, how in answer["lost"]}
            raise self._give_up() from error
        if "failures" not in answer:
            return dict(answer["answer"])
        if error is not None:
            raise error
        raise PeerFailed({int(rank): told for rank, told in answer["failures"]})

    def _give_up(self) -> RanksLost:
        """The error to raise; on rank 0 after the others have been told by every way that is left."""
        self._is_over = True
        if self.leads:
            lost = [*self._lost.items()]
            with suppress(RuntimeError):  # whoever keeps them may be gone, too
                self._words.set(_WORDS, json.dumps(lost))
            self._answer({"lost": lost})
        elif 0 in self._lost and not self._has_given_up:
            with suppress(RuntimeError, ValueError):
                self._words.wait([_WORDS], timedelta(seconds=_WORDS_SECONDS))
                self._lost = {int(rank): how for rank, how in json.loads(self._words.get(_WORDS))}
        self._has_given_up = True
        return self._loss()

    def _loss(self) -> RanksLost:
        named = "; ".join(f"rank {rank}: {how}" for rank, how in sorted(self._lost.items()))
        return RanksLost(f"rank {self.rank} of {self.world_size} cannot go on with the others. {named}. {_ADVICE}")

    def _with(self, rank: int, act: Callable[[], T]) -> T | None:
        """What ``act`` gives, which speaks to that rank; None if it is lost, or turns out to be."""
        if self._is_cut_off or rank in self._lost:
            return None
        try:
            return act()
        except RuntimeError as error:
            self._is_cut_off = "imed out" in str(error)
            silent = f"it said nothing for {self._timeout_seconds:g} s"
            self._lost[rank] = silent if self._is_cut_off else f"its connection is closed ({_first_words(error)})"
            return None

    def _send(self, rank: int, content: bytes, *, patience: int) -> None:
        import torch

        size = torch.tensor([len(content)], dtype=torch.int64)
        for part in (size, torch.frombuffer(bytearray(content), dtype=torch.uint8)):
            self._group.send([part], rank, _TEXT).wait(self._patience(patience))

    def _receive(self, rank: int, *, patience: int) -> Json:
        import torch

        size = torch.zeros(1, dtype=torch.int64)
        self._group.recv([size], rank, _TEXT).wait(self._patience(patience))
        content = torch.empty(int(size.item()), dtype=torch.uint8)
        self._group.recv([content], rank, _TEXT).wait(self._patience(patience))
        heard: Json = json.loads(content.numpy().tobytes())
        return heard

    def _patience(self, times: int) -> timedelta:
        return timedelta(seconds=self._timeout_seconds * times + (times - 1) * _WORDS_SECONDS)


def pause_seconds(since: float) -> float:
    """Until ranks that wait for each other since then look round again: a little of the time they have waited."""
    return min(max(_PAUSE_SHARE * (time.monotonic() - since), _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)


def _finish(work: Any, patience: timedelta) -> None:
    if work is not None:  # else its rank was lost before
        work.wait(patience)


def _first_words(error: RuntimeError) -> str:
    """Of gloo, which goes on to guess at the causes, after the place in its source."""
    return str(error).partition("] ")[2].partition(". ")[0][:120] or str(error)[:120]
