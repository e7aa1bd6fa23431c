from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

from chockstone.checkpoints.errors import StoreUnreachable
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.trainers import ResumeRefused
from support.trainers.fakes import Digits, FakeServer, Ledger, trainer


@pytest.fixture
async def trained(server: FakeServer, ledger: Ledger, tmp_path: Path) -> list[Path]:
    """The archives of steps 2, 4 and 6 of a finished run."""
    await trainer(tmp_path, ledger).run()
    archives = sorted(tmp_path.rglob("step-*"))
    assert len(archives) == 3
    return archives


def damage(archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    content[600] ^= 0xFF
    archive.write_bytes(content)


def cut_short(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:100])


def picture(home: Path, server: FakeServer, ledger: Ledger) -> object:
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    return files, dict(server.saved), server.runs, list(ledger.rows)


async def test_a_finished_run_has_nothing_to_do(
    trained: list[Path], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    rows = list(ledger.rows)

    outcome = await trainer(tmp_path, ledger).run()

    assert (outcome.resumed_from, outcome.checkpoint.step) == (6, 6)
    assert ledger.rows == rows
    assert server.calls.count("save_state") == 3


async def test_more_steps_may_be_asked_for(trained: list[Path], ledger: Ledger, tmp_path: Path) -> None:
    undisturbed = Ledger()
    await trainer(tmp_path / "undisturbed", undisturbed, steps=9).run()

    outcome = await trainer(tmp_path, ledger, steps=9).run()

    assert (outcome.resumed_from, outcome.progress.step, outcome.progress.samples) == (6, 9, 36)
    assert ledger.order == undisturbed.order


@pytest.mark.parametrize("spoil", [damage, cut_short])
async def test_a_damaged_newest_archive_is_walked_past(
    spoil: Any, trained: list[Path], ledger: Ledger, tmp_path: Path
) -> None:
    rows = list(ledger.rows)
    spoil(trained[-1])

    outcome = await trainer(tmp_path, ledger).run()

    assert outcome.resumed_from == 4
    assert ledger.rows == rows
    assert [event for event in ledger.events if event.startswith("warning: checkpoint") and "skipped" in event]


async def test_one_whose_weights_are_gone_is_walked_past(
    trained: list[Path], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    rows = list(ledger.rows)
    del server.saved["tinker://run-1/weights/step-00000006"]

    outcome = await trainer(tmp_path, ledger).run()

    assert outcome.resumed_from == 4
    assert ledger.rows == rows
    assert "its weights do not load: tinker://run-1/weights/step-00000006 is not here" in "".join(ledger.events)


async def test_if_none_can_be_used_it_says_why_and_changes_nothing(
    trained: list[Path], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    damage(trained[0])
    cut_short(trained[1])
    del server.saved["tinker://run-1/weights/step-00000006"]
    before = picture(tmp_path, server, ledger)

    with pytest.raises(ResumeRefused, match="none of the 3 checkpoints at .* can be resumed from") as refused:
        await trainer(tmp_path, ledger).run()

    assert picture(tmp_path, server, ledger) == before
    assert all(archive.name.split(".")[0] in str(refused.value) for archive in trained)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 9}, "seed was 0, is 9"),
        ({"rank": 4}, "rank was 32, is 4"),
        ({"batch_size": 3}, "batch_size was 2, is 3"),
        ({"group_size": 4}, "group_size was 2, is 4"),
        ({"environment": Digits(9)}, "problems was 7, is 9"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_other_settings_are_refused_by_name_and_change_nothing(
    changed: dict[str, Any], told: str, trained: list[Path], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    before = picture(tmp_path, server, ledger)

    with pytest.raises(ResumeRefused, match=told):
        await trainer(tmp_path, ledger, **changed).run()

    assert picture(tmp_path, server, ledger) == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_server_that_cannot_load_now_is_not_taken_for_one_that_never_can(
    trained: list[Path], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    error = tinker.RequestFailedError("out of memory", "r", types.RequestErrorCategory.Server)
    server.fail("load", error)
    before = picture(tmp_path, server, ledger)

    with pytest.raises(tinker.RequestFailedError) as raised:
        await trainer(tmp_path, ledger).run()

    assert raised.value is error
    assert picture(tmp_path, server, ledger) == before


@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_weights_that_are_gone_or_damaged_are_walked_past_whatever_the_server_calls_it(
    status: int, trained: list[Path], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    server.fail("load", refused(status))

    outcome = await trainer(tmp_path, ledger).run()

    assert outcome.resumed_from == 4
    assert "resuming from 'trainer/step-00000004': 2 steps are repeated" in "".join(ledger.events)


@pytest.mark.parametrize("status", [401, 403, 503])
async def test_a_server_that_does_not_let_us_or_is_down_is_not_walked_past(
    status: int, trained: list[Path], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    server.fail("load", refused(status))
    before = picture(tmp_path, server, ledger)

    with pytest.raises(tinker.APIStatusError):
        await trainer(tmp_path, ledger).run()

    assert picture(tmp_path, server, ledger) == before


@pytest.mark.parametrize("word", ["open", "entries"])
async def test_a_store_that_is_down_is_neither_walked_past_nor_taken_for_an_empty_one(
    word: str,
    trained: list[Path],
    server: FakeServer,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = picture(tmp_path, server, ledger)

    def fail(store: FileStore, name: str = "") -> object:
        raise StoreUnreachable("503 Slow Down")

    monkeypatch.setattr(FileStore, word, fail)

    with pytest.raises(StoreUnreachable):
        await trainer(tmp_path, ledger).run()

    assert picture(tmp_path, server, ledger) == before


def refused(status: int) -> tinker.APIStatusError:
    response = httpx.Response(status, request=httpx.Request("POST", "http://server/"))
    return tinker.APIStatusError(f"refused with {status}", response=response, body=None)


async def test_a_limit_that_is_lowered_holds_for_what_was_generated_before(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    undisturbed = Ledger()
    await trainer(tmp_path / "undisturbed", undisturbed).run()
    task = asyncio.create_task(trainer(tmp_path / "lowered", ledger, staleness=3).run())
    ledger.before_record = lambda record: loop.call_soon_threadsafe(task.cancel) if record.step == 3 else None
    loop = asyncio.get_running_loop()
    await asyncio.wait([task])
    assert task.cancelled()

    await trainer(tmp_path / "lowered", ledger, staleness=0).run()

    assert ledger.order == undisturbed.order
    assert {row["staleness"] for row in ledger.rows if row["step"] > 3} == {0}
