"""The local backend with a worker that answers without loading anything."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from chockstone.backends.protocol import GpuMemory, PassReply, StepReply, WorkerLost, WorkerMemory
from chockstone.backends.supervision import process, supervisor
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.wire.failures import BadRequest, ServerFailure
from support.backends.scripted_worker import FAILURE, SAVE, Rig, echo, rig, until

__all__ = ["rig"]


async def test_a_call_comes_back_with_values_and_body(rig: Rig) -> None:
    async with rig.running() as backend:
        stepped = await backend.optim_step("echo", {"a": [1, "ä"]})
        passed = await backend.forward_backward("echo", b"\x00body")

    assert stepped == StepReply(metrics={"a": [1, "ä"]})  # type: ignore[dict-item]  # whatever was sent comes back
    assert passed == PassReply(result=b"\x00body", tokens=5)


async def test_calls_wait_until_the_worker_is_ready(rig: Rig) -> None:
    async with rig.running("slow") as backend:
        assert not backend.is_ready

        assert await echo(backend, a=1) == {"a": 1}

        assert backend.is_ready


async def test_calls_may_be_answered_in_any_order(rig: Rig) -> None:
    async with rig.running() as backend:
        waiting = [asyncio.create_task(backend.optim_step("wait", {})) for _ in range(3)]
        assert await echo(backend, a=1) == {"a": 1}
        assert not any(task.done() for task in waiting)

        await backend.optim_step("finish", {})

        await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("category", "kind"), [("user", BadRequest), ("server", ServerFailure), ("unknown", ServerFailure)]
)
async def test_a_failure_is_raised_as_the_worker_gave_it(rig: Rig, category: str, kind: type[Exception]) -> None:
    async with rig.running() as backend:
        with pytest.raises(kind, match="no such loss"):
            await backend.optim_step("fail", FAILURE | {"message": "no such loss", "category": category})

        assert await echo(backend, a=1) == {"a": 1}
    assert rig.lost == []


@pytest.mark.parametrize("code", ["damaged", "missing", "no_room", None])
async def test_a_failure_keeps_its_code(rig: Rig, code: str | None) -> None:
    async with rig.running() as backend:
        with pytest.raises(BadRequest) as caught:
            await backend.optim_step("fail", FAILURE | {"code": code})

    assert caught.value.code == code


async def test_a_failure_keeps_its_facts(rig: Rig) -> None:
    async with rig.running() as backend:
        with pytest.raises(BadRequest) as caught:
            await backend.optim_step("fail", FAILURE | {"needed_bytes": 7, "reason": "block 3"})

    assert (caught.value.needed_bytes, caught.value.reason) == (7, "block 3")


async def test_a_save_releases_its_run_before_it_is_done(rig: Rig) -> None:
    released = asyncio.Event()
    async with rig.running() as backend:
        saving = asyncio.create_task(backend.save(SAVE, on_release=released.set))
        await asyncio.wait_for(released.wait(), 30)

        assert not saving.done()
        await backend.optim_step("finish", {})
        await saving


async def test_a_worker_that_dies_fails_its_calls_and_is_started_again(rig: Rig) -> None:
    async with rig.running() as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)

        with pytest.raises(WorkerLost, match="ended with signal 9"):
            await backend.optim_step("be killed", {})
        with pytest.raises(WorkerLost, match="ended with signal 9"):
            await waiting

        assert await echo(backend, a=1) == {"a": 1}
        assert backend.environment["life"] == 2
    assert rig.lost == ["the worker process ended with signal 9 (SIGKILL, sent manually or by the OOM killer)"]


async def test_the_status_tells_phases_deaths_and_memory(rig: Rig) -> None:
    clock = iter(range(100, 200))
    async with rig.running("beats", clock=lambda: float(next(clock))) as backend:
        starting = backend.status
        await echo(backend)
        while (ready := backend.status).memory.resident_bytes is None:
            await asyncio.sleep(0.001)
        with pytest.raises(WorkerLost):
            await backend.optim_step("exit", {"code": 3})
        while not (away := backend.status).deaths:
            await asyncio.sleep(0)
        await echo(backend)
        again = backend.status
    over = backend.status

    assert (starting.phase, starting.deaths, starting.last_death) == ("starting", 0, None)
    assert (ready.phase, ready.memory) == ("ready", WorkerMemory(7, (GpuMemory("GPU", 1, 2),)))
    assert (away.phase, away.deaths, away.memory) == ("restarting", 1, WorkerMemory())
    assert away.last_death == "the worker process ended with exit code 3"
    assert (again.phase, again.deaths) == ("ready", 1)
    assert over.phase == "stopped"
    assert away.last_death_at is not None
    assert starting.since < ready.since < away.since < away.last_death_at < again.since < over.since


async def test_each_death_is_told_once_and_survived(rig: Rig) -> None:
    async with rig.running() as backend:
        for code in (3, 4):
            with pytest.raises(WorkerLost, match=f"exit code {code}"):
                await backend.optim_step("exit", {"code": code})
        await echo(backend)

    assert [reason[-1] for reason in rig.lost] == ["3", "4"]
    assert rig.lives == 3


async def test_the_engine_hears_of_a_death_before_those_who_called(rig: Rig) -> None:
    """So that nothing of a run that is lost goes to the next worker."""
    order: list[str] = []
    backend = rig.backend()
    backend._on_lost = lambda _: order.append("engine")
    await backend.start()

    async def call() -> None:
        with pytest.raises(WorkerLost):
            await backend.optim_step("be killed", {})
        order.append("caller")

    await call()
    await backend.stop()

    assert order == ["engine", "caller"]


async def test_calls_wait_for_the_next_worker_when_one_dies_while_it_starts(rig: Rig) -> None:
    async with rig.running("dies in its first life") as backend:
        assert await echo(backend, a=1) == {"a": 1}

    assert rig.lost == ["the worker process ended with exit code 7"]
    assert rig.lives == 2


async def test_a_worker_without_hope_is_not_started_again(rig: Rig) -> None:
    async with rig.running("hopeless") as backend:
        with pytest.raises(WorkerLost):
            await echo(backend)
        with pytest.raises(WorkerLost):
            await echo(backend)
        assert not backend.is_ready

    assert rig.hopeless == ["there is no such model"]
    assert rig.lost == []
    assert rig.lives == 1


async def test_stopping_lets_the_worker_finish(rig: Rig) -> None:
    async with rig.running() as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)

        await asyncio.wait_for(backend.stop(), 30)

        await waiting
    assert rig.lost == []
    assert rig.lives == 1


async def test_calls_that_a_stopped_worker_left_open_are_lost(rig: Rig) -> None:
    async with rig.running("rude") as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)

        await asyncio.wait_for(backend.stop(), 30)

        with pytest.raises(WorkerLost):
            await asyncio.wait_for(waiting, 30)
        with pytest.raises(WorkerLost):
            await echo(backend)
    assert rig.lost == []


async def test_a_worker_may_be_stopped_before_it_is_ready(rig: Rig) -> None:
    async with rig.running("slow") as backend:
        waiting = asyncio.create_task(backend.optim_step("echo", {}))
        await until(lambda: backend._handle)

    await asyncio.wait({waiting}, timeout=30)
    assert waiting.done()
    waiting.exception()
    assert not backend.is_ready


async def test_a_backend_may_be_stopped_as_soon_as_it_was_started(rig: Rig) -> None:
    async with rig.running():
        await asyncio.sleep(0)

    async with rig.running():
        pass


async def test_a_backend_may_be_stopped_while_it_waits_to_start_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_DELAY_SECONDS", 60)
    async with rig.running() as backend:
        with pytest.raises(WorkerLost):
            await backend.optim_step("exit", {"code": 1})
        waiting = asyncio.create_task(echo(backend))
        await asyncio.sleep(0)

    with pytest.raises(WorkerLost):
        await waiting


async def test_a_killed_backend_ends_at_once_and_for_good(rig: Rig) -> None:
    async with rig.running() as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)

        backend.kill()

        with pytest.raises(WorkerLost):
            await asyncio.wait_for(waiting, 30)
    assert rig.lives == 1


async def test_an_answer_that_nobody_waits_for_any_more_is_dropped(rig: Rig) -> None:
    async with rig.running() as backend:
        waiting = asyncio.create_task(backend.optim_step("wait", {}))
        await echo(backend)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        await backend.optim_step("finish", {})

        assert await echo(backend, a=1) == {"a": 1}


async def test_the_delay_before_a_new_start_grows_while_workers_keep_dying(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_DELAY_SECONDS", 0.04)
    delays: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        delays.append(seconds)
        await sleep(0)

    backend = rig.backend()
    backend._command = ["/no/such/program"]
    backend.generation = 1  # some worker was ready once
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", recorded)
        await backend.start()
        while len(delays) < 4:
            await sleep(0)
        await backend.stop()

    assert delays[:4] == [0.01, 0.02, 0.04, 0.04]


async def test_a_worker_that_does_not_come_up_is_tried_again_and_told_of(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    backend = rig.backend()
    right, backend._command = backend._command, ["/no/such/program"]
    await backend.start()
    asked = asyncio.create_task(echo(backend))
    while backend.trouble is None:
        await asyncio.sleep(0.01)

    assert "died 3 times before it was ready" in backend.trouble
    assert "could not be started" in backend.trouble
    assert "worker not ready attempts=3" in caplog.text
    assert not backend.is_ready and not asked.done()
    assert rig.hopeless == []

    backend._command = right
    await asked

    assert backend.trouble is None
    assert backend.is_ready
    await backend.stop()


async def test_workers_that_die_after_they_were_ready_are_not_told_of_as_workers_that_do_not_come_up(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.running() as backend:
        for _ in range(4):
            with pytest.raises(WorkerLost):
                await backend.optim_step("be killed", {})
        await backend.ready()

    assert len(rig.lost) == 4
    assert "worker not ready" not in caplog.text


async def test_a_server_that_has_too_many_files_open_starts_its_worker_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    backend = rig.backend()
    with monkeypatch.context() as patched:
        patched.setattr(process.socket, "socketpair", refuse)
        await backend.start()
        await until(lambda: rig.lost)

    assert await echo(backend, a=1) == {"a": 1}
    await backend.stop()


async def test_each_worker_that_becomes_ready_is_a_new_generation(rig: Rig) -> None:
    backend = rig.backend("dies in its first life")
    assert backend.generation == 0 and backend.environment == {}

    await backend.start()
    await asyncio.wait_for(backend.ready(), 30)
    first = backend.generation, backend.environment["life"]
    with pytest.raises(WorkerLost):
        await backend.optim_step("be killed", {})
    between = backend.generation
    await asyncio.wait_for(backend.ready(), 30)
    second = backend.generation, backend.environment["life"]
    await backend.stop()

    assert first == (1, 2)
    assert between == 1
    assert second == (2, 3)


async def test_a_call_goes_to_the_worker_it_is_meant_for(rig: Rig) -> None:
    async with rig.running() as backend:
        await backend.ready()

        await backend.optim_step("echo", {}, generation=1)


@pytest.mark.parametrize("generation", [0, 2])
async def test_a_call_for_another_worker_is_not_sent(rig: Rig, generation: int) -> None:
    async with rig.running() as backend:
        with pytest.raises(WorkerLost, match="meant for"):
            await backend.optim_step("be killed", {}, generation=generation)

        await echo(backend)
        assert backend.generation == 1
    assert rig.lost == []


async def test_a_call_that_waits_for_a_worker_is_not_sent_to_the_next_one(rig: Rig) -> None:
    async with rig.running() as backend:
        with pytest.raises(WorkerLost):
            await backend.optim_step("be killed", {})
        assert not backend.is_ready
        meant_for_any = asyncio.create_task(backend.optim_step("echo", {}))

        with pytest.raises(WorkerLost, match="meant for"):
            await asyncio.wait_for(backend.optim_step("be killed", {}, generation=backend.generation), 30)

        await meant_for_any
        await echo(backend)
    assert len(rig.lost) == 1


async def test_a_worker_that_takes_its_time_to_die_is_asked_nothing_more(rig: Rig) -> None:
    async with rig.running() as backend:
        await backend.ready()
        dying = asyncio.create_task(backend.optim_step("hang up", {"seconds": 0.3}))
        await until(lambda: not backend.is_ready)

        assert rig.lost == []  # nobody knows yet how it ended
        meant_for_it = asyncio.create_task(backend.optim_step("echo", {}, generation=1))
        await echo(backend)  # by the next one

        with pytest.raises(WorkerLost, match="meant for") as unsent:
            await meant_for_it
        with pytest.raises(WorkerLost, match="exit code 1") as sent:
            await dying
    assert (sent.value.code, unsent.value.code) == (None, "unsent")
    assert len(rig.lost) == 1


async def test_a_call_that_did_not_reach_the_worker_whole_may_be_what_it_died_of(rig: Rig) -> None:
    async with rig.running() as backend:
        await backend.ready()
        stuck = asyncio.create_task(backend.optim_step("stop reading", {"seconds": 0.3}))
        await asyncio.sleep(0)  # it is sent

        with pytest.raises(WorkerLost, match="exit code 1") as half_sent:
            await backend.forward_backward("echo", bytes(16 << 20))  # more than a socket takes

        with pytest.raises(WorkerLost, match="exit code 1") as sent:
            await stuck
    assert (sent.value.code, half_sent.value.code) == (None, None)


async def test_a_worker_that_never_comes_is_not_waited_for(rig: Rig) -> None:
    async with rig.running("hopeless") as backend:
        with pytest.raises(WorkerLost, match="will not be started again"):
            await asyncio.wait_for(backend.ready(), 30)


async def test_a_worker_that_says_nothing_is_killed(rig: Rig) -> None:
    async with rig.running(heartbeat_limits=HeartbeatLimits(check_seconds=0.02, silence_checks=10)) as backend:
        with pytest.raises(WorkerLost, match="hung: nothing came from it for 0.2 seconds"):
            await asyncio.wait_for(backend.optim_step("wait", {}), 30)


async def test_a_worker_that_is_stuck_is_killed_although_its_heart_beats(rig: Rig) -> None:
    limits = HeartbeatLimits(check_seconds=0.02, silence_checks=10_000, stuck_seconds=0.2)
    async with rig.running("stuck", heartbeat_limits=limits) as backend:
        with pytest.raises(WorkerLost, match="hung: it was busy with one piece of work for 0.2 seconds"):
            await asyncio.wait_for(backend.optim_step("wait", {}), 30)


async def test_a_worker_that_was_of_use_is_started_again_without_a_long_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        if seconds < 3600:
            delays.append(seconds)
        await sleep(min(seconds, 0.001))

    async with rig.running() as backend:
        await backend.ready()
        monkeypatch.setattr(asyncio, "sleep", recorded)
        for has_answered in (False, False, True, False):
            if has_answered:
                await echo(backend)
            with pytest.raises(WorkerLost):
                await backend.optim_step("be killed", {})
            await backend.ready()
        monkeypatch.undo()

    assert delays == [0.01, 0.02, 0.01, 0.02]


async def test_no_two_workers_of_replicas_have_the_same_generation(rig: Rig) -> None:
    generations = itertools.count(1)
    async with rig.running(generations=generations) as one, rig.running(generations=generations) as other:
        await asyncio.gather(one.ready(), other.ready())

        assert {one.generation, other.generation} == {1, 2}
