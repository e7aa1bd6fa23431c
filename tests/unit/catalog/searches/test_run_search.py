from __future__ import annotations

import pytest

from chockstone.catalog import Catalog, RunProgress
from chockstone.catalog.searches.run_search import RunOrder, RunQuery
from support.catalog.making import NOW, after, make_run, make_session, save


async def make_runs(catalog: Catalog, count: int) -> list[str]:
    """Each a minute later than the one before; even ones are Ann's, odd ones Bob's."""
    await make_session(catalog)
    runs = [
        await make_run(
            catalog,
            model_seq_id=n,
            owner="bob" if n % 2 else "ann",
            base_model=f"model-{n % 3}",
            now=after(minutes=n),
            user_metadata={"note": f"Über {n}"},
        )
        for n in range(count)
    ]
    return [run.run_id for run in runs]


async def ids(catalog: Catalog, query: RunQuery) -> list[str]:
    return [each.run.run_id for each in (await catalog.run_search.search(query, now=NOW)).runs]


async def all_pages(catalog: Catalog, **query: object) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await catalog.run_search.search(RunQuery(**query, limit=2, cursor=cursor), now=NOW)  # type: ignore[arg-type]  # of any field
        found += [each.run.run_id for each in page.runs]
        if (cursor := page.cursor) is None:
            return found


@pytest.mark.parametrize("is_descending", [True, False])
@pytest.mark.parametrize("order", ["created", "last_request", "step", "loss", "tokens", "owner", "base_model", "bytes"])
async def test_pages_in_any_order_have_each_run_once(catalog: Catalog, order: RunOrder, is_descending: bool) -> None:
    runs = await make_runs(catalog, 7)
    await catalog.runs.record_progress(
        {
            runs[0]: RunProgress(5, 0.5, tokens=50),
            runs[1]: RunProgress(5, 2.0, tokens=10),
            runs[2]: RunProgress(7, -1.0),
        }
    )
    await save(catalog, "a", run_id=runs[3], size_bytes=300)
    await save(catalog, "b", run_id=runs[3], size_bytes=300)
    await save(catalog, "c", run_id=runs[4], size_bytes=400)

    whole = await ids(catalog, RunQuery(order=order, is_descending=is_descending, limit=100))

    assert sorted(whole) == sorted(runs)
    assert await all_pages(catalog, order=order, is_descending=is_descending) == whole
    if order in ("step", "loss", "tokens"):
        known = {"step": 3, "loss": 3, "tokens": 2}[order]
        assert set(whole[:known]) <= set(runs[:3]), "runs without a value come last"


async def test_the_order_is_that_of_the_values(catalog: Catalog) -> None:
    runs = await make_runs(catalog, 4)
    await catalog.runs.record_progress({runs[n]: RunProgress(n, loss) for n, loss in enumerate((3.0, 1.0, 2.0))})
    await save(catalog, "a", run_id=runs[1], size_bytes=1)
    await save(catalog, "b", run_id=runs[2], size_bytes=2)

    assert await ids(catalog, RunQuery()) == runs[::-1]
    assert await ids(catalog, RunQuery(order="loss", is_descending=False)) == [runs[1], runs[2], runs[0], runs[3]]
    assert await ids(catalog, RunQuery(order="loss")) == [runs[0], runs[2], runs[1], runs[3]]
    assert (await ids(catalog, RunQuery(order="bytes")))[:2] == [runs[2], runs[1]]


async def test_a_page_stays_right_while_runs_are_added(catalog: Catalog) -> None:
    runs = await make_runs(catalog, 4)
    first = await catalog.run_search.search(RunQuery(limit=2), now=NOW)
    await make_run(catalog, model_seq_id=9, now=after(hours=1))

    second = await catalog.run_search.search(RunQuery(limit=2, cursor=first.cursor), now=NOW)

    assert [each.run.run_id for each in (*first.runs, *second.runs)] == runs[::-1]
    assert (first.total_count, second.total_count, second.cursor) == (4, 5, None)


async def test_checkpoints_of_the_page_are_counted(catalog: Catalog) -> None:
    runs = await make_runs(catalog, 2)
    await save(catalog, "a", run_id=runs[0], size_bytes=10)
    await save(catalog, "b", run_id=runs[0], size_bytes=20)
    await save(catalog, "gone", run_id=runs[0], size_bytes=40, expires_at=NOW)

    page = await catalog.run_search.search(RunQuery(), now=NOW)
    one = await catalog.run_search.get(runs[0], now=NOW)

    assert [(each.checkpoints, each.checkpoint_bytes) for each in page.runs] == [(0, 0), (2, 30)]
    assert one is not None and (one.checkpoints, one.checkpoint_bytes) == (2, 30)
    assert await catalog.run_search.get("none", now=NOW) is None


async def test_runs_are_found_by_owner_state_and_words(catalog: Catalog) -> None:
    runs = await make_runs(catalog, 6)
    await catalog.runs.set_state(runs[0], "parked")
    await catalog.runs.set_state(runs[1], "lost", failure="gone")
    live, matching = [runs[2], runs[3]], [runs[3]]

    assert await ids(catalog, RunQuery(owner="ann")) == [runs[4], runs[2], runs[0]]
    assert await ids(catalog, RunQuery(states=["parked", "lost"])) == [runs[1], runs[0]]
    assert await ids(catalog, RunQuery(states=["active"], live=live, matching=matching)) == [runs[5], runs[4], runs[3]]
    assert await ids(catalog, RunQuery(states=[], live=live, matching=matching)) == [runs[3]]
    assert await ids(catalog, RunQuery(text="MODEL-1 bob")) == [runs[1]]
    assert await ids(catalog, RunQuery(text=["Über", "4"][0])) == runs[::-1]
    assert await ids(catalog, RunQuery(text="train:5")) == [runs[5]]
    assert await ids(catalog, RunQuery(text="100%")) == [], "a percent sign is a percent sign"
    assert await catalog.run_search.count_by_state("ann", but=[runs[2]]) == {"parked": 1, "active": 1}
    assert await catalog.run_search.count_by_state(None) == {"parked": 1, "lost": 1, "active": 4}


async def test_lost_runs_that_had_trained_are_listed_for_a_while(catalog: Catalog) -> None:
    runs = await make_runs(catalog, 3)
    for run_id in runs:
        await catalog.runs.set_state(run_id, "lost", failure="gone")
    await catalog.runs.record_progress({runs[0]: RunProgress(4), runs[1]: RunProgress(None, None, None, 9)})

    assert [row.run_id for row in await catalog.run_search.list_lost(since=NOW, per_owner=10, limit=10)] == [
        runs[1],
        runs[0],
    ]
    assert await catalog.run_search.list_lost(since=after(minutes=5), per_owner=10, limit=10) == ()


async def test_children_are_found_by_the_run_of_their_parent(catalog: Catalog) -> None:
    runs = await make_runs(catalog, 4)
    for child, parent in ((1, 0), (2, 1), (3, 0)):
        path = f"tinker://{runs[parent]}/weights/a"
        await catalog.runs.record_progress({runs[child]: RunProgress(parent=path)})

    children = await catalog.run_search.list_children([runs[0]], owner=None, limit=10)
    own = await catalog.run_search.list_children(runs[:2], owner="ann", limit=10)

    assert [row.run_id for row in children] == [runs[1], runs[3]]
    assert [row.run_id for row in own] == [runs[2]]
    assert await catalog.run_search.list_children([], owner=None, limit=10) == ()
