"""Custom losses: whose they are, and that a run which used one comes back whatever became of its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chockstone.backends.calls import ForwardBackwardCall
from chockstone.backends.protocol import PassReply
from chockstone.catalog import RowMissing
from chockstone.catalog.tables.losses import LossRow
from chockstone.engine.journal.scan import scan_all
from chockstone.engine.runs.commands import ForwardBackward
from chockstone.engine.runs.run import Run
from chockstone.wire.codecs import messages_pb2 as pb
from support.engine.lives import EVERY_STEP, Life, lived
from support.engine.making import NOW, RUN, answer, until

DEFINITION = {"graph": {"format": 1, "nodes": []}, "inputs": [{"name": "logprobs", "rank": 1}]}
LOSS = "other:loss:0"


async def uploaded(life: Life, owner: str = "local") -> LossRow:
    """A loss of another session than the run's."""
    await life.catalog.sessions.create("other", owner=owner, sdk_version="0.36.0", now=NOW)
    row = await life.catalog.losses.create("other", 0, owner=owner, name="mine", definition=DEFINITION, now=NOW)
    await answer(life.engine, life.engine.add_loss(row))
    return row


async def ask_pass(life: Life, number: int) -> str:
    """A pass that uses the loss."""
    loss = await life.engine.losses.find(LOSS, owner="local")
    seq_id = life._next()
    body = str(number).encode()
    return await life.engine.training.forward_backward(await life.run(), seq_id, body, loss=loss)


@asynccontextmanager
async def trained(home: Path, **facts: Any) -> AsyncIterator[Life]:
    """A life in which a run has used the loss of another session, for a step and a half."""
    async with lived(home, **facts) as life:
        await uploaded(life)
        await life.make()
        life.backend.custom = LOSS
        assert not (await life.result(await ask_pass(life, 5))).is_failure
        await life.result(await life.ask_step())
        assert not (await life.result(await ask_pass(life, 7))).is_failure
        yield life


async def test_a_loss_is_found_by_its_owner_alone_and_nobody_else_learns_that_it_is_there(home: Path) -> None:
    async with lived(home) as life:
        row = await uploaded(life)

        assert await life.engine.losses.find(LOSS, owner="local") == row
        told = []
        for loss_id in (LOSS, "other:loss:9"):
            with pytest.raises(RowMissing) as caught:
                await life.engine.losses.find(loss_id, owner="stranger")
            told.append(str(caught.value).replace(loss_id, "ID"))
        assert told[0] == told[1]


async def test_the_next_worker_has_the_loss_of_another_session_before_the_pass_is_replayed(home: Path) -> None:
    async with trained(home) as life:
        before = await life.state()

        life.backend.die("signal 9")

        assert await life.state() == before == (5, 7, 1)
        [receipt] = await life.receipts()
        assert (receipt.replayed, receipt.matched, receipt.mismatched) == (4, 3, 0)
        limits = [values["loss_limits"] for values in life.backend.values_of("forward_backward")]
        assert limits == ["enforced"] * 2 + ["lifted"] * 2, "what was done before is not refused for its cost"


async def test_a_worker_that_dies_while_it_is_sent_a_loss_costs_nothing(home: Path) -> None:
    async with trained(home) as life:
        life.backend.die("signal 9")
        life.backend.hold("add_loss")
        await until(lambda: life.backend.words()[-1] == "add_loss")

        life.backend.die("signal 9")

        assert await life.state() == (5, 7, 1)
        assert life.backend.generation == 3


@pytest.mark.parametrize("is_lost", [False, True])
async def test_the_next_server_has_the_run_as_it_was_also_without_its_catalog(home: Path, is_lost: bool) -> None:
    async with trained(home) as first:
        await first.written()
        left = first.crash()
    for lost in left.glob("catalog.sqlite3*") if is_lost else ():
        lost.unlink()

    async with lived(left, after=first) as second:
        second.backend.custom = LOSS
        assert await second.state() == (5, 7, 1)
        assert second.backend.losses == {LOSS: DEFINITION}


async def test_a_loss_that_is_damaged_in_the_journal_is_the_catalogs(home: Path) -> None:
    async with trained(home) as first:
        await first.written()
        left = first.crash()
    [segment] = (left / first.journal().relative_to(first.home)).iterdir()
    content = segment.read_bytes()
    assert content.count(b'"nodes"') == 1
    segment.write_bytes(content.replace(b'"nodes"', b'"knots"'))

    async with lived(left, after=first) as second:
        second.backend.custom = LOSS
        assert await second.state() == (5, 7, 1)


async def test_the_end_of_the_losss_session_costs_no_run_of_another(home: Path) -> None:
    async with trained(home) as life:
        life.backend.hold("forward_backward")
        running = await ask_pass(life, 1)
        await until(lambda: life.backend.words()[-1] == "forward_backward")

        await life.engine.sessions.finish("other")
        await until(lambda: LOSS in life.engine.losses._unwanted)
        assert LOSS in life.backend.losses, "the pass under way needs it"
        life.backend.let_go("forward_backward")

        assert not (await life.result(running)).is_failure
        await until(lambda: LOSS not in life.backend.losses)
        assert not (await life.result(await ask_pass(life, 2))).is_failure
        life.backend.die("signal 9")
        assert await life.state() == (5, 7 + 1 + 2, 1)


def held_losses(live: Run) -> set[int]:
    """Records of losses that keep their segments from being deleted."""
    journal = live.journal._journal
    assert journal is not None
    held = {sequence for segment in journal._segments for sequence in segment.held}
    losses = [record for scan in scan_all(journal.directory) for record in scan.records]
    return {record.sequence for record in losses if record.head.get("kind") == "loss"} & held


async def test_a_journal_keeps_a_loss_as_long_as_a_replay_may_use_it_and_no_longer(home: Path) -> None:
    async with trained(home, durability=EVERY_STEP) as first:
        for number in range(6):
            await first.result(await ask_pass(first, number))
            await first.train_slowly(0)
        assert 1 <= len(held_losses(await first.run())) <= 3, "one for each recovery archive and one since"
        await first.result(await ask_pass(first, 1))
        before = await first.state()
        await first.written()
        left = first.crash()
    for lost in left.glob("catalog.sqlite3*"):
        lost.unlink()

    async with lived(left, after=first, durability=EVERY_STEP) as second:
        second.backend.custom = LOSS
        assert await second.state() == before
        second.backend.custom = None
        for number in range(4):
            await second.train_slowly(number)
        assert held_losses(await second.run()) == set(), "no pass needs it any more"


async def test_a_pass_of_an_earlier_version_is_replayed_with_its_loss_and_gives_the_bytes_it_gave(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = pb.ForwardBackwardRequest(model_id=RUN, seq_id=1, loss_fn="custom")
    message.loss_fn_config_v2["loss_id"].text = LOSS
    seen: list[tuple[bool, bool, str]] = []

    async with lived(home) as life:

        def compute(call: ForwardBackwardCall) -> PassReply:
            seen.append((LOSS in life.backend.losses, call.elementwise_loss, call.loss_limits))
            return PassReply(result=b"result", tokens=1)

        monkeypatch.setattr(life.backend, "_pass", compute)
        await uploaded(life)
        live = await life.make()
        command = ForwardBackward(elementwise_loss=False, has_loss_id=False)
        await life.result(await life.engine._core.runner.submit(live, 1, command, message.SerializeToString()))

        life.backend.die("signal 9")
        await life.state()

    assert seen == [(True, False, "enforced"), (True, False, "unmetered")]


async def test_losses_sent_and_dropped_at_once_are_there_for_the_pass(home: Path) -> None:
    async with trained(home) as life:
        await asyncio.gather(*(life.engine.losses.drop("other") for _ in range(3)), ask_pass(life, 1))
        await life.state()

        assert not (await life.result(await ask_pass(life, 2))).is_failure
        assert (await life.state())[1] == 7 + 1 + 2
