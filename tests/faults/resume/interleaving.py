"""Several processes of one chain, each storage call of which may come before or after any of the others'.

The store is a dictionary. Every process is a thread that stops before each of its calls until a
scheduler lets it go on, so a seed is a whole history: who went first, who slept in the middle, who was
killed. A listing is two calls, records before archives: no store promises that it shows one moment.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from chockstone.checkpoints.errors import CheckpointExists, CheckpointMissing, StoreUnreachable
from chockstone.checkpoints.resume.attempts.claims import SETTLED
from chockstone.checkpoints.resume.attempts.cost import Cost
from chockstone.checkpoints.resume.attempts.places import PlaceListing
from chockstone.checkpoints.stores.store import SUFFIX, PartialWrite, StoreEntry

T = TypeVar("T")
R = TypeVar("R")


class Killed(BaseException):
    """The process is gone; nothing of it catches this."""


class Process(threading.Thread):
    def __init__(self, world: World, body: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._body = body
        self.go = threading.Semaphore(0)
        self.priority = world.random.random()
        self.is_doomed = False
        self.is_over = False
        self.error: BaseException | None = None

    def run(self) -> None:
        self.go.acquire()
        try:
            if not self.is_doomed:
                self._body()
        except Killed:
            pass
        except BaseException as error:  # the scheduler raises it
            self.error = error
        finally:
            self.is_over = True
            self._world.back.release()

    def pause(self) -> None:
        self._world.back.release()
        self.go.acquire()
        if self.is_doomed:
            raise Killed


@dataclass
class World:
    """The store, and time: ``now`` counts its calls."""

    seed: int
    objects: dict[str, bytes] = field(default_factory=dict)
    now: int = 0
    written: dict[str, int] = field(default_factory=dict)  # when each record was, by key
    processes: list[Process] = field(default_factory=list)
    kills: int = 0
    faulty: float = 0.0  # how often a call fails
    faults: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.back = threading.Semaphore(0)

    def call(self) -> None:
        """One storage call begins, in whichever thread."""
        process = threading.current_thread()
        if isinstance(process, Process):
            process.pause()
        self.now += 1
        self.fail()

    def fail(self) -> None:
        """Perhaps: a call does not get through, or, asked after it did what it does, its answer does not."""
        if isinstance(threading.current_thread(), Process) and self.random.random() < self.faulty:
            self.faults += 1
            raise StoreUnreachable("the network is down")

    def start(self, body: Callable[[], object]) -> None:
        process = Process(self, body)
        self.processes.append(process)
        process.start()

    def run(self) -> None:
        """Until all processes have ended. Some histories hop at every call, others let one run and others sleep."""
        hop = self.random.choice([0.02, 0.1, 0.3, 1.0])
        deadly = self.random.choice([0.0, 0.0, 0.005, 0.03])
        while alive := [each for each in self.processes if not each.is_over]:
            if self.random.random() < hop:
                self.random.choice(alive).priority = self.random.random()
            chosen = max(alive, key=lambda each: each.priority)
            if self.random.random() < deadly:
                chosen.is_doomed = True
                self.kills += 1
            chosen.go.release()
            self.back.acquire()
        for process in self.processes:
            process.join()
            if process.error is not None:
                raise process.error


class MemoryPlaces:
    """As ``AttemptPlaces``, for one process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cost = Cost()

    def open(self, uri: str) -> MemoryPlace:
        return MemoryPlace(self._world, uri)

    def names(self, root: str) -> list[str]:
        self._world.call()
        return sorted({key[len(root) + 1 :].partition("/")[0] for key in self._world.objects if key.startswith(root)})


class MemoryPlace:
    def __init__(self, world: World, uri: str) -> None:
        self.uri = uri
        self.cost = Cost()
        self._world = world
        self._folder = f"{uri}.ckpt/"
        self.store = MemoryStore(world, self._folder)

    def _names(self) -> list[str]:
        self._world.call()
        return [key[len(self._folder) :] for key in self._world.objects if key.startswith(self._folder)]

    def listing(self) -> PlaceListing:
        records, archives = self._sizes(archive=False), self._sizes(archive=True)
        return PlaceListing(
            records, {name.removesuffix(SUFFIX): size for name, size in archives.items()}, bool(records)
        )

    def _sizes(self, *, archive: bool) -> dict[str, int]:
        names = self._names()
        return {
            name: len(self._world.objects[self._folder + name]) for name in names if name.endswith(SUFFIX) is archive
        }

    def open(self, name: str) -> MemorySource:
        return self.store.open(name)

    def read(self, record: str) -> bytes:
        self._world.call()
        try:
            return self._world.objects[self._folder + record]
        except KeyError:
            raise CheckpointMissing(f"there is no {self._folder}{record}") from None

    def records(self, folder: str) -> list[str]:
        return [name for name in self._names() if name.startswith(f"{folder}/")]

    def put_if_absent(self, record: str, content: bytes) -> bool:
        self._world.call()
        key = self._folder + record
        if key in self._world.objects:
            return False
        self._world.objects[key] = content
        self._world.written[key] = self._world.now
        self._world.fail()
        return True

    def put(self, record: str, content: bytes) -> None:
        if record == SETTLED:  # the other one is the report, which nobody reads: no call of its own
            self._world.call()
        self._world.objects[self._folder + record] = content

    def remove(self, name: str) -> bool:
        return self.store.delete(name)

    def delete(self, record: str) -> bool:
        self._world.call()
        return self._world.objects.pop(self._folder + record, None) is not None


class MemoryStore:
    def __init__(self, world: World, folder: str) -> None:
        self.url = folder.rstrip("/")
        self._world = world
        self._folder = folder

    def _key(self, name: str) -> str:
        return f"{self._folder}{name}{SUFFIX}"

    def begin(self, name: str, size: int) -> MemorySink:
        return MemorySink(self._world, self._key(name), size)

    def open(self, name: str) -> MemorySource:
        self._world.call()
        try:
            return MemorySource(self._world.objects[self._key(name)])
        except KeyError:
            raise CheckpointMissing(f"checkpoint {name!r} is not in {self.url}") from None

    def delete(self, name: str) -> bool:
        self._world.call()
        return self._world.objects.pop(self._key(name), None) is not None

    def entries(self, prefix: str = "") -> Iterator[StoreEntry]:
        raise NotImplementedError

    def stat(self, name: str) -> StoreEntry:
        raise NotImplementedError

    def copy(self, name: str, target: str, *, overwrite: bool = False) -> None:
        raise NotImplementedError

    def free_bytes(self) -> int | None:
        return None

    def sweep(self, *, min_age_seconds: float = 0.0, dry_run: bool = False) -> list[PartialWrite]:
        return []


class MemorySink:
    def __init__(self, world: World, key: str, size: int) -> None:
        self._world = world
        self._key = key
        self._content = bytearray(size)

    def write_at(self, offset: int, data: memoryview) -> None:
        self._content[offset : offset + len(data)] = data

    def commit(self, *, overwrite: bool) -> None:
        assert not overwrite, "generations are never overwritten"
        self._world.call()
        content = bytes(self._content)
        if self._world.objects.setdefault(self._key, content) is not content:
            raise CheckpointExists(f"{self._key} is there already")
        self._world.fail()

    def abort(self) -> None:
        pass


class MemorySource:
    run_bytes = 1024**2
    readers = 1

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def read_into(self, offset: int, target: memoryview) -> None:
        target[:] = self._content[offset : offset + len(target)]

    def map(self) -> memoryview | None:
        return None

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        pass


def one_after_the_other(places: Any, candidates: Sequence[Any], _: object, flyte_native: Any = None) -> list[Any]:
    """In the stead of ``probe``, whose threads no scheduler knows."""
    from chockstone.checkpoints.resume.attempts.attempt import Attempt

    return [Attempt.inspect(places.open(each.uri), flyte_native) for each in candidates]


class InThisThread:
    """In the stead of ``ThreadPoolExecutor``, for the same reason."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, call: Callable[[T], R], values: Iterable[T]) -> list[R]:
        return [call(value) for value in values]
