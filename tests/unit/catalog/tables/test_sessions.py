from __future__ import annotations

import asyncio
from datetime import timedelta, timezone

import pytest

from chockstone.catalog import Catalog, RowExists, RowMissing, SessionRow, UnstorableColumnValue
from support.catalog.making import NOW, after, make_run, make_session


async def test_a_session_comes_back_as_it_was_made(catalog: Catalog) -> None:
    facts = {
        "project_id": "p",
        "display_name": "Größe 1",
        "tags": ("a", "b"),
        "user_metadata": {'k"ey': "välue", "": "\\"},
        "idempotency_key": "key",
    }

    made = await make_session(catalog, **facts)

    assert made == await catalog.sessions.get("s")
    assert made == SessionRow(
        session_id="s",
        owner="local",
        project_id="p",
        display_name="Größe 1",
        tags=["a", "b"],
        user_metadata={'k"ey': "välue", "": "\\"},
        sdk_version="0.36.0",
        created_at=NOW,
        last_heartbeat_at=NOW,
        finished_at=None,
        finish_reason=None,
        finish_detail=None,
        idempotency_key="key",
    )
    assert not made.is_finished


async def test_an_unknown_session_is_missing(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="session 'x'"):
        await catalog.sessions.get("x")
    with pytest.raises(RowMissing, match="session 'x'"):
        await catalog.sessions.finish("x", reason="success", now=NOW)
    with pytest.raises(RowMissing, match="session 'x'"):
        await catalog.sessions.set_project("x", "p")


async def test_retries_with_one_idempotency_key_get_the_first_session(catalog: Catalog) -> None:
    retries = (make_session(catalog, f"s{n}", idempotency_key="key", user_metadata={"try": str(n)}) for n in range(40))

    made = await asyncio.gather(*retries)

    assert len({session.session_id for session in made}) == 1
    assert await catalog.sessions.list("local", limit=100) == (made[0],)


async def test_an_idempotency_key_is_its_owners(catalog: Catalog) -> None:
    mine = await make_session(catalog, "s1", idempotency_key="key")
    theirs = await make_session(catalog, "s2", idempotency_key="key", owner="other")

    assert (mine.session_id, theirs.session_id) == ("s1", "s2")


async def test_sessions_without_a_key_are_all_new(catalog: Catalog) -> None:
    for n in range(3):
        await make_session(catalog, f"s{n}")

    assert len(await catalog.sessions.list("local", limit=100)) == 3


async def test_a_taken_id_is_refused(catalog: Catalog) -> None:
    await make_session(catalog)

    with pytest.raises(RowExists, match="session 's'"):
        await make_session(catalog)
    with pytest.raises(RowExists, match="session 's'"):
        await make_session(catalog, idempotency_key="key")


async def test_lists_are_newest_first_and_paged(catalog: Catalog) -> None:
    for n in (3, 1, 4, 0, 2):
        await make_session(catalog, f"s{n}", now=after(seconds=n / 2))  # whole and half seconds sort together
    await make_session(catalog, "foreign", owner="other", now=after(hours=1))

    async def ids(owner: str | None, **page: int) -> list[str]:
        return [session.session_id for session in await catalog.sessions.list(owner, **page)]

    assert await ids("local", limit=10) == ["s4", "s3", "s2", "s1", "s0"]
    assert await ids("local", limit=2, offset=1) == ["s3", "s2"]
    assert await ids(None, limit=2) == ["foreign", "s4"]
    assert await ids("local", limit=2, offset=9) == []


async def test_moments_come_back_in_utc(catalog: Catalog) -> None:
    elsewhere = timezone(timedelta(hours=-7, minutes=-30))

    made = await make_session(catalog, now=NOW.astimezone(elsewhere) + timedelta(microseconds=1))

    assert made.created_at == NOW + timedelta(microseconds=1)
    assert made.created_at.utcoffset() == timedelta(0)


async def test_moments_without_a_zone_are_refused(catalog: Catalog) -> None:
    with pytest.raises(UnstorableColumnValue, match="no time zone"):
        await make_session(catalog, now=NOW.replace(tzinfo=None))


@pytest.mark.parametrize(
    "facts",
    [{"display_name": "\ud800"}, {"user_metadata": {"a": "\ud800"}}, {"user_metadata": {"a": float("nan")}}],
    ids=["surrogate", "surrogate inside", "not a number"],
)
async def test_what_no_column_holds_is_refused_and_leaves_nothing(catalog: Catalog, facts: dict[str, object]) -> None:
    with pytest.raises(UnstorableColumnValue, match="send another"):
        await make_session(catalog, **facts)

    assert await catalog.sessions.list(None, limit=10) == ()


async def test_the_first_reason_to_finish_wins(catalog: Catalog) -> None:
    await make_session(catalog)

    first = await catalog.sessions.finish("s", reason="errored", detail="out of memory", now=after(seconds=5))
    again = await catalog.sessions.finish("s", reason="success", now=after(seconds=6))

    assert first == again == await catalog.sessions.get("s")
    assert (first.finish_reason, first.finish_detail, first.finished_at) == (
        "errored",
        "out of memory",
        after(seconds=5),
    )
    assert first.is_finished


async def test_of_many_finishes_at_once_all_see_one_winner(catalog: Catalog) -> None:
    await make_session(catalog)

    finished = await asyncio.gather(
        *(catalog.sessions.finish("s", reason="success", detail=str(n), now=NOW) for n in range(20))
    )

    assert len({session.finish_detail for session in finished}) == 1


async def test_a_restarted_server_finds_the_unfinished(catalog: Catalog) -> None:
    for n in range(3):
        await make_session(catalog, f"s{n}", now=after(seconds=n))
    await catalog.sessions.finish("s1", reason="success", now=NOW)

    assert [session.session_id for session in await catalog.sessions.list_unfinished()] == ["s0", "s2"]


async def test_heartbeats_only_move_forward(catalog: Catalog) -> None:
    for name in ("s1", "s2", "s3"):
        await make_session(catalog, name)

    await catalog.sessions.touch_many({})
    await catalog.sessions.touch_many({"s2": after(seconds=9), "s1": after(seconds=1), "unknown": NOW})
    await catalog.sessions.touch_many({"s2": after(seconds=5), "s1": after(seconds=2)})

    beats = [(await catalog.sessions.get(name)).last_heartbeat_at for name in ("s1", "s2", "s3")]
    assert beats == [after(seconds=2), after(seconds=9), NOW]


async def test_runs_move_with_their_session(catalog: Catalog) -> None:
    for name in ("s", "t"):
        await make_session(catalog, name)
        await make_run(catalog, name)

    moved = await catalog.sessions.set_project("s", "p")

    assert moved.project_id == "p"
    assert (await catalog.runs.get("s:train:0")).project_id == "p"
    assert (await catalog.runs.get("t:train:0")).project_id is None


async def test_a_session_that_only_a_journal_remembers_is_rebuilt_once(catalog: Catalog) -> None:
    rebuilt = await asyncio.gather(
        *(catalog.sessions.rebuild("s", owner="a", project_id="p", now=after(seconds=n)) for n in range(10))
    )

    assert len({session.created_at for session in rebuilt}) == 1
    assert (rebuilt[0].owner, rebuilt[0].project_id, rebuilt[0].sdk_version) == ("a", "p", "")
    assert not rebuilt[0].is_finished


async def test_entering_a_session_leaves_one_that_is_there_as_it_is(catalog: Catalog) -> None:
    made = await make_session(catalog, display_name="mine", user_metadata={"k": "v"})

    assert await catalog.sessions.rebuild("s", owner="other", now=after(hours=1)) == made
