from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog, RowMissing, RunProgress, RunRow, RunState, UnstorableColumnValue
from support.catalog.making import NOW, after, make_run, make_session


async def test_a_run_comes_back_as_it_was_made(catalog: Catalog) -> None:
    await make_session(catalog)
    spec = {"rank": 32, "seed": None, "train_mlp": True}

    made = await make_run(
        catalog,
        model_seq_id=3,
        spec=spec,
        optimizer_config={"type": "adamw"},
        user_metadata={"renderer_name": "qwen3"},
        project_id="p",
    )

    assert made == await catalog.runs.get("s:train:3")
    assert made == RunRow(
        run_id="s:train:3",
        session_id="s",
        model_seq_id=3,
        owner="local",
        base_model="Qwen/Qwen3-8B",
        spec=spec,
        optimizer_config={"type": "adamw"},
        user_metadata={"renderer_name": "qwen3"},
        created_at=NOW,
        last_request_at=NOW,
        project_id="p",
        state="active",
        failure=None,
    )


async def test_a_retried_run_is_the_first_one_whatever_the_retry_says(catalog: Catalog) -> None:
    await make_session(catalog)

    made = await asyncio.gather(*(make_run(catalog, base_model=f"model-{n}") for n in range(40)))

    assert len({run.base_model for run in made}) == 1
    assert await catalog.runs.list_by_session("s") == (made[0],)


async def test_two_servers_on_one_database_make_one_run(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        await make_session(one)
        made = await asyncio.gather(
            *(make_run(catalog, model_seq_id=n) for n in range(10) for catalog in (one, two, one, two))
        )

        assert {run.run_id for run in made} == {f"s:train:{n}" for n in range(10)}
        assert (await two.runs.list("local", limit=100)).total_count == 10


async def test_a_run_needs_its_session(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="session 's'"):
        await make_run(catalog)


async def test_an_unknown_run_is_missing(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="run 'x'"):
        await catalog.runs.get("x")
    with pytest.raises(RowMissing, match="run 'x'"):
        await catalog.runs.set_state("x", "lost")


@pytest.mark.parametrize("facts", [{"model_seq_id": 2**63}, {"spec": {"rank": float("inf")}}])
async def test_numbers_no_column_holds_are_refused(catalog: Catalog, facts: dict[str, object]) -> None:
    await make_session(catalog)

    with pytest.raises(UnstorableColumnValue, match="send another"):
        await make_run(catalog, **facts)  # type: ignore[arg-type]


async def test_lists_are_newest_first_with_the_count_of_all(catalog: Catalog) -> None:
    await make_session(catalog)
    for n in range(5):
        await make_run(catalog, model_seq_id=n, now=after(seconds=n), project_id="p" if n % 2 else None)
    await make_run(catalog, model_seq_id=9, owner="other")

    async def page(owner: str | None, **where: object) -> tuple[list[int], int]:
        found = await catalog.runs.list(owner, **where)  # type: ignore[arg-type]
        return [run.model_seq_id for run in found.rows], found.total_count

    assert await page("local", limit=2) == ([4, 3], 5)
    assert await page("local", limit=2, offset=4) == ([0], 5)
    assert await page("local", limit=2, offset=7) == ([], 5)
    assert await page("local", limit=0) == ([], 5)
    assert await page("local", limit=9, project_id="p") == ([3, 1], 2)
    assert await page("nobody", limit=9) == ([], 0)
    assert (await page(None, limit=1))[1] == 6


async def test_last_requests_only_move_forward(catalog: Catalog) -> None:
    await make_session(catalog)
    for n in range(2):
        await make_run(catalog, model_seq_id=n)

    await catalog.runs.touch_many({"s:train:1": after(seconds=3), "unknown": NOW})
    await catalog.runs.touch_many({"s:train:1": after(seconds=1)})

    assert [run.last_request_at for run in await catalog.runs.list_by_session("s")] == [NOW, after(seconds=3)]


async def test_touches_in_opposite_orders_do_not_block_each_other(catalog: Catalog) -> None:
    await make_session(catalog)
    names = [(await make_run(catalog, model_seq_id=n)).run_id for n in range(20)]

    await asyncio.gather(
        *(
            catalog.runs.touch_many({name: after(seconds=n) for name in (names if n % 2 else reversed(names))})
            for n in range(20)
        )
    )

    assert {run.last_request_at for run in await catalog.runs.list_by_session("s")} == {after(seconds=19)}


async def test_a_lost_run_says_why(catalog: Catalog) -> None:
    await make_session(catalog)
    for n in range(3):
        await make_run(catalog, model_seq_id=n, now=after(seconds=n))

    lost = await catalog.runs.set_state("s:train:1", "lost", failure="no good archive")

    assert lost == await catalog.runs.get("s:train:1")
    assert (lost.state, lost.failure) == ("lost", "no good archive")
    assert [run.model_seq_id for run in await catalog.runs.list_in_state("active")] == [0, 2]


async def test_a_run_that_only_its_journal_remembers_is_rebuilt_once(catalog: Catalog) -> None:
    facts = {"owner": "a", "base_model": "tiny", "spec": {"rank": 8}, "user_metadata": {"k": "v"}, "project_id": "p"}
    await catalog.sessions.rebuild("s:2", owner="a", now=NOW, project_id="p")

    rebuilt = await asyncio.gather(*(catalog.runs.rebuild("s:2:train:3", **facts, now=NOW) for _ in range(10)))
    await catalog.runs.set_state("s:2:train:3", "active")
    again = await catalog.runs.rebuild("s:2:train:3", **{**facts, "base_model": "other"}, now=after(hours=1))

    assert {(run.session_id, run.model_seq_id, run.state) for run in rebuilt} == {("s:2", 3, "parked")}
    assert again == await catalog.runs.get("s:2:train:3")
    assert (again.base_model, again.state, again.project_id, again.created_at) == ("tiny", "active", "p", NOW)
    assert await catalog.runs.list_in_state("parked") == ()


@pytest.mark.parametrize("run_id", ["", "s", "s:train", "s:train:", "s:train:x", "s:train:01", "s.train.0", ":train:0"])
async def test_what_is_no_runs_id_is_not_rebuilt(catalog: Catalog, run_id: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a run"):
        await catalog.runs.rebuild(run_id, owner="a", base_model="tiny", spec={}, now=NOW)


async def test_a_run_is_rebuilt_after_its_session(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="session 's'"):
        await catalog.runs.rebuild("s:train:0", owner="a", base_model="tiny", spec={}, now=NOW)


async def test_parked_runs_are_found_by_their_state(catalog: Catalog) -> None:
    await make_session(catalog)
    for n in range(3):
        await make_run(catalog, model_seq_id=n, now=after(seconds=n))

    await catalog.runs.set_state("s:train:1", "parked")

    assert [run.model_seq_id for run in await catalog.runs.list_in_state("parked")] == [1]
    assert [run.model_seq_id for run in await catalog.runs.list_in_state("active")] == [0, 2]


async def test_a_run_is_over_when_it_is_unloaded_or_its_session_is_finished(catalog: Catalog) -> None:
    for session_id in ("s", "t"):
        await make_session(catalog, session_id)
    states: tuple[RunState, ...] = ("active", "parked", "lost", "unloaded")
    for n, state in enumerate(states):
        await make_run(catalog, model_seq_id=n, state=state)
    await make_run(catalog, "t")
    await catalog.sessions.finish("t", reason="success", now=NOW)

    found = await catalog.runs.are_over([*(f"s:train:{n}" for n in range(700)), "t:train:0"])

    assert found == {
        "s:train:0": False,
        "s:train:1": False,
        "s:train:2": False,
        "s:train:3": True,
        "t:train:0": True,
    }
    assert await catalog.runs.are_over([]) == {}


async def test_progress_is_written_for_many_runs_and_none_keeps_what_is_known(catalog: Catalog) -> None:
    await make_session(catalog)
    for number in range(3):
        await make_run(catalog, model_seq_id=number)

    path = "tinker://s:train:0/weights/a"
    await catalog.runs.record_progress({})
    await catalog.runs.record_progress(
        {"s:train:0": RunProgress(7, 0.5), "s:train:1": RunProgress(0, None, path), "gone": RunProgress(1, 1.0)}
    )
    await catalog.runs.record_progress({"s:train:0": RunProgress(8), "s:train:1": RunProgress(1, 2.0)})

    rows = await catalog.runs.list_by_session("s")
    assert [(row.steps, row.last_loss, row.parent) for row in rows] == [
        (8, 0.5, None),
        (1, 2.0, path),
        (None, None, None),
    ]


async def test_a_deleted_run_is_gone_and_another_may_have_its_number(catalog: Catalog) -> None:
    await make_session(catalog)
    run = await make_run(catalog)

    await catalog.runs.delete(run.run_id)
    await catalog.runs.delete(run.run_id)

    with pytest.raises(RowMissing):
        await catalog.runs.get(run.run_id)
    assert (await make_run(catalog, base_model="other")).base_model == "other"
