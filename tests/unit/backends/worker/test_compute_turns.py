from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from chockstone.backends.worker.compute_turns import ComputeTurns, Steps


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Generation:
    """A source with so many steps to do, each as long as the last."""

    def __init__(self, clock: Clock | None = None, *, steps: int = 0, seconds: float = 0.0) -> None:
        self.steps = steps
        self.seconds = seconds
        self.clock = clock or Clock()
        self.spent = 0.0
        self.on_step: Callable[[], None] = lambda: None

    def has_work(self) -> bool:
        return self.steps > 0

    def step(self) -> None:
        self.steps -= 1
        self.clock.seconds += self.seconds
        self.spent += self.seconds
        self.on_step()


def run_to_the_end(turns: ComputeTurns) -> None:
    """With a watchdog: a loop that waits for ever fails instead."""
    ended = threading.Event()

    def run() -> None:
        turns.run(lambda: True)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(10), "the loop did not end"


def test_tasks_take_turns() -> None:
    turns = ComputeTurns(Generation())
    trace: list[str] = []

    def task(name: str, pieces: int) -> Steps:
        for piece in range(pieces):
            trace.append(f"{name}{piece}")
            yield None

    for name, pieces in (("a", 3), ("b", 1), ("c", 2)):
        turns.start(task(name, pieces))
    run_to_the_end(turns)

    assert trace == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_a_task_that_waits_lets_the_others_work() -> None:
    turns = ComputeTurns(Generation())
    trace: list[str] = []
    disk: Future[str] = Future()

    def waits() -> Steps:
        trace.append("asks")
        yield disk
        trace.append(disk.result())

    def works() -> Steps:
        for piece in range(3):
            trace.append(f"works {piece}")
            yield None
        disk.set_result("has it")

    turns.start(waits())
    turns.start(works())
    run_to_the_end(turns)

    assert trace == ["asks", "works 0", "works 1", "works 2", "has it"]


def test_a_future_may_be_done_by_another_thread_while_nothing_else_is_to_do() -> None:
    turns = ComputeTurns(Generation())
    disk: Future[int] = Future()
    results: list[int] = []

    def waits() -> Steps:
        yield disk
        results.append(disk.result())

    turns.start(waits())
    threading.Timer(0.01, lambda: disk.set_result(7)).start()
    run_to_the_end(turns)

    assert results == [7]


def test_a_future_that_is_done_already_is_not_waited_for() -> None:
    turns = ComputeTurns(Generation())
    done: Future[int] = Future()
    done.set_result(1)
    trace: list[str] = []

    def task() -> Steps:
        yield done
        trace.append("went on")

    turns.start(task())
    run_to_the_end(turns)

    assert trace == ["went on"]


def test_a_task_goes_on_after_a_future_that_failed() -> None:
    turns = ComputeTurns(Generation())
    failed: Future[int] = Future()
    failed.set_exception(OSError("the disk is full"))
    errors: list[str] = []

    def task() -> Steps:
        yield failed
        try:
            failed.result()
        except OSError as error:
            errors.append(str(error))

    turns.start(task())
    run_to_the_end(turns)

    assert errors == ["the disk is full"]


def test_actions_run_on_the_computing_thread_in_the_order_they_were_posted() -> None:
    turns = ComputeTurns(Generation())
    trace: list[int] = []
    threads: set[int] = set()
    over = threading.Event()

    def action(number: int) -> None:
        trace.append(number)
        threads.add(threading.get_ident())

    for number in range(10):
        turns.post(lambda number=number: action(number))  # type: ignore[misc]  # bound now
    turns.post(over.set)
    turns.run(over.is_set)

    assert trace == list(range(10))
    assert threads == {threading.get_ident()}


def test_an_action_is_taken_in_between_the_pieces_of_a_task() -> None:
    turns = ComputeTurns(Generation())
    trace: list[str] = []

    def task() -> Steps:
        turns.post(lambda: trace.append("action"))
        trace.append("piece 0")
        yield None
        trace.append("piece 1")

    turns.start(task())
    run_to_the_end(turns)

    assert trace == ["piece 0", "action", "piece 1"]


def test_when_it_is_over_what_was_started_still_ends() -> None:
    generation = Generation(steps=3)
    turns = ComputeTurns(generation)
    disk: Future[None] = Future()
    trace: list[str] = []

    def task() -> Steps:
        yield None
        threading.Timer(0.01, lambda: disk.set_result(None)).start()
        yield disk
        trace.append("saved")

    turns.start(task())
    run_to_the_end(turns)

    assert trace == ["saved"]
    assert generation.steps == 0
    assert turns.is_idle()


def test_a_loop_that_is_over_with_nothing_to_do_ends_without_being_woken() -> None:
    run_to_the_end(ComputeTurns(Generation()))


def test_an_idle_loop_uses_no_time_and_is_woken_by_an_action() -> None:
    turns = ComputeTurns(Generation())
    over = threading.Event()
    threading.Timer(0.05, lambda: turns.post(over.set)).start()

    before = time.thread_time()
    turns.run(over.is_set)

    assert time.thread_time() - before < 0.04


def test_what_starts_while_only_the_source_works_gets_its_turn_at_once() -> None:
    clock = Clock()
    generation = Generation(clock, steps=100, seconds=1.0)
    turns = ComputeTurns(generation, now=clock)
    steps_left: list[int] = []

    def task() -> Steps:
        steps_left.append(generation.steps)
        yield None

    generation.on_step = lambda: turns.start(task()) if generation.steps == 90 else None
    run_to_the_end(turns)

    assert steps_left == [90]  # long hours alone earn the tasks no debt


def test_the_pulse_counts_turns_and_tells_work_from_waiting() -> None:
    generation = Generation(steps=2)
    turns = ComputeTurns(generation)
    pulses = [turns.progress()]

    def task() -> Steps:
        pulses.append(turns.progress())
        yield None

    turns.start(task())
    over = threading.Event()
    idle = threading.Timer(0.05, lambda: (pulses.append(turns.progress()), turns.post(over.set)))
    turns.post(idle.start)
    turns.run(over.is_set)

    before, within, waiting = pulses
    assert before == (0, False)
    assert within[1]
    assert waiting == (4, False)  # two turns of the task, the last of which ends it, and two of the source


@given(
    task_seconds=st.lists(st.floats(0.01, 5.0), min_size=1, max_size=4),
    source_seconds=st.floats(0.01, 5.0),
)
def test_generation_and_all_tasks_together_get_the_same_time(task_seconds: list[float], source_seconds: float) -> None:
    """To within one piece of work, however many tasks there are and however long their pieces."""
    clock = Clock()
    generation = Generation(clock, steps=40, seconds=source_seconds)
    turns = ComputeTurns(generation, now=clock)
    spent = 0.0
    differences: list[float] = []

    def task(seconds: float) -> Steps:
        nonlocal spent
        for _ in range(40):
            if generation.has_work():
                differences.append(spent - generation.spent)
            clock.seconds += seconds
            spent += seconds
            yield None

    for seconds in task_seconds:
        turns.start(task(seconds))
    run_to_the_end(turns)

    piece = max(*task_seconds, source_seconds)
    assert all(abs(difference) <= piece + 1e-6 for difference in differences)


def test_parties_take_turns_however_many_tasks_they_have() -> None:
    turns = ComputeTurns(Generation())
    trace: list[str] = []

    def task(name: str, pieces: int) -> Steps:
        for _ in range(pieces):
            trace.append(name)
            yield None

    for number in range(5):
        turns.start(task(f"flood{number}", 4), owner="ann")
    turns.start(task("small", 4), owner="bob")
    run_to_the_end(turns)

    assert [place for place, name in enumerate(trace) if name == "small"] == [1, 3, 5, 7]
    assert trace[:8:2] == ["flood0", "flood1", "flood2", "flood3"], "tasks of a owner take turns, too"


def test_a_task_that_waited_goes_on_in_the_turns_of_its_party() -> None:
    turns = ComputeTurns(Generation())
    trace: list[str] = []
    done: Future[None] = Future()
    done.set_result(None)

    def waits() -> Steps:
        yield done
        for _ in range(3):
            trace.append("small")
            yield None

    def floods() -> Steps:
        for _ in range(6):
            trace.append("flood")
            yield None

    for _ in range(4):
        turns.start(floods(), owner="ann")
    turns.start(waits(), owner="bob")
    run_to_the_end(turns)

    assert max(place for place, name in enumerate(trace) if name == "small") <= 8
