from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from chockstone.checkpoints import LoopBlocked, LoopWatchdog, Stall
from chockstone.checkpoints.runtime.watchdog import _BOUNDS, _quantile

GUARD_SECONDS = 30.0


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=pytest.importorskip(request.param).new_event_loop) as runner:
        yield runner


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread for thread in threading.enumerate() if thread.name == "chockstone-watchdog"] == []


def block_until(true: Callable[[], bool]) -> None:
    """Hold the loop until the watchdog has seen it."""
    deadline = time.monotonic() + GUARD_SECONDS
    while not true():
        assert time.monotonic() < deadline, "the watchdog never looked"
        time.sleep(0.001)


def has_seen(watchdog: LoopWatchdog, *, late_seconds: float = 0.0) -> Callable[[], bool]:
    """Whether the beat that is due now was looked at inside a callback, and is late enough."""

    def seen() -> bool:
        look = watchdog._sample
        is_late = time.monotonic() - watchdog._due > late_seconds
        return is_late and look is not None and look.due == watchdog._due and look.stack is not None

    return seen


async def beats(watchdog: LoopWatchdog, count: int) -> None:
    seen = 0
    while seen < count:
        await asyncio.sleep(0.001)
        seen += watchdog.drain().beats


def test_a_callback_that_holds_the_loop_is_named(runner: asyncio.Runner) -> None:
    async def main() -> tuple[Stall, ...]:
        async with LoopWatchdog(threshold_seconds=0.02, interval_seconds=0.005) as watchdog:
            block_until(has_seen(watchdog))
            await asyncio.sleep(0.01)
            return watchdog.drain().stalls

    stalls = runner.run(main())

    assert "block_until(has_seen(watchdog))" in stalls[0].stack
    assert stalls[0].seconds >= 0.02
    assert 0 <= stalls[0].held_seconds <= stalls[0].seconds


def test_a_callback_beyond_the_limit_fails_the_block(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with LoopWatchdog(limit_seconds=0.01) as watchdog:
            block_until(has_seen(watchdog, late_seconds=0.3))
            watchdog.drain()  # what is drained still counts

    with pytest.raises(LoopBlocked, match="in block_until") as caught:
        runner.run(main())

    assert caught.value.stalls[0].held_seconds > 0.01


def test_the_error_of_the_block_comes_first(runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with LoopWatchdog(limit_seconds=0.01) as watchdog:
            block_until(has_seen(watchdog, late_seconds=0.3))
            raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        runner.run(main())


def test_waiting_for_a_thread_is_no_stall_of_a_callback(runner: asyncio.Runner) -> None:
    async def main() -> tuple[Stall, ...]:
        async with LoopWatchdog(limit_seconds=0.05) as watchdog:
            await asyncio.to_thread(time.sleep, 0.2)
            return watchdog.drain().stalls

    assert all(stall.held_seconds <= 0.05 for stall in runner.run(main()))


def test_a_loop_that_is_late_but_in_no_callback_is_told_without_a_stack(runner: asyncio.Runner) -> None:
    watchdog = LoopWatchdog(limit_seconds=0.01)

    async def begin() -> None:
        await watchdog.__aenter__()

    async def end() -> tuple[Stall, ...]:
        await watchdog.__aexit__(None, None, None)
        return watchdog.drain().stalls

    runner.run(begin())
    block_until(lambda: watchdog._sample is not None and watchdog._sample.due == watchdog._due)
    stalls = runner.run(end())

    assert (stalls[0].stack, stalls[0].held_seconds) == ("", 0.0)
    assert stalls[0].seconds >= 0.01


@pytest.mark.parametrize("taken", ["core", "interpreter"])
def test_what_others_took_is_not_held_against_a_callback(taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Stall:
        async with LoopWatchdog(limit_seconds=0.01) as watchdog:
            block_until(has_seen(watchdog))
            if taken == "core":
                monkeypatch.setattr(watchdog, "_waited_for_a_core", lambda: watchdog._waited + 100)
            else:
                object.__setattr__(watchdog._sample, "overslept_seconds", 100.0)
            return watchdog._judge(1.0)

    stall = asyncio.run(main())

    assert "block_until" in stall.stack
    assert stall.held_seconds == 0.0


def test_a_callback_in_c_is_seen_on_asyncios_loop() -> None:
    lock = threading.Lock()
    lock.acquire()

    async def main() -> tuple[Stall, ...]:
        async with LoopWatchdog(threshold_seconds=0.02, interval_seconds=0.005) as watchdog:

            def release() -> None:
                block_until(has_seen(watchdog))
                lock.release()

            releasing = threading.Thread(target=release)
            releasing.start()
            asyncio.get_running_loop().call_soon(lock.acquire)
            await asyncio.sleep(0.01)
            releasing.join()
            return watchdog.drain().stalls

    assert "in _run" in asyncio.run(main())[0].stack


def test_a_drain_has_each_beat_once(runner: asyncio.Runner) -> None:
    counted: list[float] = []
    drained: list[int] = []
    ends = threading.Event()

    async def main() -> None:
        async with LoopWatchdog(interval_seconds=0.001, on_beat=counted.append) as watchdog:

            def drain() -> None:
                while not ends.wait(0.0005):
                    drained.append(watchdog.drain().beats)

            draining = [threading.Thread(target=drain) for _ in range(3)]
            for thread in draining:
                thread.start()
            while len(counted) < 50:
                await asyncio.sleep(0.001)
            ends.set()
        for thread in draining:
            thread.join()
        drained.append(watchdog.drain().beats)

    runner.run(main())

    assert sum(drained) == len(counted) >= 50


def test_stalls_are_told_in_the_watchdogs_thread_and_a_failing_listener_ends_nothing(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, str]] = []

    def listen(stall: Stall) -> None:
        told.append((threading.current_thread().name, stall.stack))
        raise OSError("the log is full")

    async def main() -> None:
        async with LoopWatchdog(threshold_seconds=0.02, interval_seconds=0.005, on_stall=listen) as watchdog:
            for _ in range(2):
                block_until(has_seen(watchdog))
                await asyncio.sleep(0.01)

    runner.run(main())

    held = [(name, stack) for name, stack in told if "block_until" in stack]
    assert len(held) == 2
    assert {name for name, _ in held} == {"chockstone-watchdog"}
    assert "the watchdog continues" in caplog.text


def test_only_the_longest_stalls_are_kept() -> None:
    watchdog = LoopWatchdog(keep=2)

    kept: list[Stall] = []
    for seconds in (3.0, 1.0, 2.0):
        kept = watchdog._longest_of(kept, Stall(seconds, "", 0.0))

    assert [stall.seconds for stall in kept] == [3.0, 2.0]


def test_quantiles_are_right_to_within_a_tenth_and_never_beyond_the_longest() -> None:
    counts = [0] * (len(_BOUNDS) + 1)
    counts[50] = 98  # up to _BOUNDS[50], from that below it on
    counts[80] = 2

    assert _quantile(counts, 1.0, 0.5) == _BOUNDS[50] <= 1.1001 * _BOUNDS[49]
    assert _quantile(counts, 1.0, 0.99) == _BOUNDS[80]
    assert _quantile(counts, 0.001, 0.99) == 0.001
    assert _quantile([0] * len(counts), 0.0, 0.99) == 0.0


def test_a_loop_that_closes_ends_its_watchdog(runner: asyncio.Runner) -> None:
    watchdog = LoopWatchdog(interval_seconds=0.001, threshold_seconds=0.001)

    async def main() -> None:
        watchdog.start(asyncio.get_running_loop())
        await beats(watchdog, 3)

    runner.run(main())
    runner.close()
    assert watchdog._thread is not None
    watchdog._thread.join(GUARD_SECONDS)

    assert not watchdog._thread.is_alive()
    watchdog.stop()


def test_it_can_be_stopped_from_another_thread_or_before_it_began(runner: asyncio.Runner) -> None:
    early, late = LoopWatchdog(), LoopWatchdog(interval_seconds=0.001)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        early.start(loop)
        early.stop()
        late.start(loop)
        await beats(late, 3)
        await asyncio.to_thread(late.stop)
        await asyncio.sleep(0.01)
        late.drain()
        await asyncio.sleep(0.02)
        return late.drain().beats

    assert runner.run(main()) == 0
    with pytest.raises(RuntimeError, match="once"):
        early.start(runner.get_loop())
