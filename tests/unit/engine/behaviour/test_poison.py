"""Operations that kill what runs them, and those that only stand near."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chockstone.backends.protocol import WorkerLost
from support.engine.lives import lived
from support.engine.making import until


async def test_a_poisoned_operation_is_failed_by_name_and_its_run_goes_on(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(5)
        life.backend.poison = b"666"
        poisoned = await life.ask_pass(666)
        after = await life.ask_pass(1)
        step = await life.ask_step()

        told = await life.told(poisoned)
        assert told["category"] == "server"
        assert "pass killed the worker 3 times, so it is not tried again: signal 11" in told["error"]
        assert (await life.result(after)).body == b"loss 1"
        assert (await life.told(step))["metrics"]["weight"] == 6
        assert [body for _, _, body in life.backend.calls].count(b"666") == 3
        life.backend.die("signal 9")
        assert await life.state() == (6, 0, 2), "a failed operation is not replayed"


async def test_the_neighbours_of_a_poisoned_operation_do_not_fail(home: Path) -> None:
    async with lived(home) as life:
        for number in range(4):
            await life.make(number)
        life.backend.poison = b"666"
        life.backend.hold("forward_backward")
        poisoned = await life.ask_pass(666)
        innocent = [await life.ask_pass(number, f"s:train:{number}") for number in (1, 2, 3)]
        await until(lambda: life.backend.words().count("forward_backward") == 4)

        life.backend.let_go("forward_backward")

        assert "killed the worker 3 times" in (await life.told(poisoned))["error"]
        assert [(await life.result(each)).body for each in innocent] == [b"loss 1", b"loss 2", b"loss 3"]


async def test_an_operation_that_takes_servers_down_with_it_is_failed_by_name_too(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(5)
        life.backend.hold("forward_backward")
        poisoned = await life.ask_pass(666)
        after = await life.ask_step()
        await until(lambda: life.backend.words().count("forward_backward") == 2)
        home = life.crash()
    for _ in range(10):
        async with lived(home, after=life) as life:
            life.backend.hold("forward_backward 666")
            await until(lambda life=life: life.backend.calls and life.backend.calls[-1][2] == b"666")
            await life.written()
            home = life.crash()

    async with lived(home) as last:
        told = await last.told(poisoned)
        assert "pass was under way when the server died, 10 times, so it is not tried again" in told["error"]
        assert (await last.told(after))["metrics"]["weight"] == 5


async def test_a_save_that_kills_the_worker_after_it_let_its_run_go_on_is_failed_by_name(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(5)
        life.backend.hold("disk")
        poisoned = await life.ask_save("a")
        await life.train(1)
        for saves in (1, 2, 3):
            await until(lambda saves=saves: life.backend.words().count("save") == saves)
            life.backend.die("signal 9")
            if saves < 3:
                life.backend.hold("disk")

        told = await life.told(poisoned)
        assert "save killed the worker 3 times, so it is not tried again" in told["error"]
        assert await life.state() == (6, 0, 2)
        assert "error" not in await life.told(await life.ask_save("b"))


async def test_a_save_beside_a_poisoned_operation_is_made_in_the_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as life:
        await life.make(1)
        await life.make(0)
        await life.train(5)
        backend, ordinary, is_over = life.backend, life.backend._pass_gate, asyncio.Event()

        async def slow(word: str) -> None:
            began = backend.generation
            await ordinary(word)
            while word == "disk" and not is_over.is_set() and backend.generation == began:
                await asyncio.sleep(0.001)
            if backend.generation != began:
                raise WorkerLost("signal 11")
            if word == "forward_backward 666":
                await asyncio.sleep(0.1)  # a save that may begin has begun by then

        monkeypatch.setattr(backend, "_pass_gate", slow)
        backend.poison = b"666"
        saved = await life.ask_save("a")
        await life.train(1)

        told = await life.told(await life.ask_pass(666, "s:train:1"))
        is_over.set()

        assert "killed the worker 3 times" in told["error"]
        assert "error" not in await life.told(saved)


async def test_who_only_waited_for_its_turn_while_a_poisoned_operation_killed_is_not_blamed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as life:
        await life.make(0)
        await life.make(1)
        ordinary = life.backend._pass_gate

        async def slow(word: str) -> None:
            await ordinary(word)
            if word.startswith("forward_backward "):
                await asyncio.sleep(0.1)  # all that wait for it are there by then

        monkeypatch.setattr(life.backend, "_pass_gate", slow)
        life.backend.poison = b"666"
        poisoned, innocent = await life.ask_pass(666), await life.ask_pass(5, "s:train:1")

        assert "killed the worker 3 times" in (await life.told(poisoned))["error"]
        assert (await life.result(innocent)).body == b"loss 5"
