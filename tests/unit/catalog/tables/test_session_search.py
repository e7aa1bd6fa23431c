from __future__ import annotations

import random
from typing import Any

import pytest

from chockstone.catalog import (
    Catalog,
    SessionCursor,
    SessionPage,
    SessionQuery,
    SessionRow,
    StatusFilter,
)
from support.catalog.making import NOW, after, begin, make_run, make_session, save

NAMES = [None, "", "Sweep One", "sweep two", "ONE more", "100% of_it", "Straße", "naïve sweep"]
REASONS = [None, None, "success", "errored", "interrupted", "cancelled", "failed"]


async def ids(catalog: Catalog, **conditions: Any) -> list[str]:
    page = await catalog.sessions.search(SessionQuery(**conditions), now=NOW)
    return [summary.session.session_id for summary in page.sessions]


async def populate(catalog: Catalog, count: int, chance: random.Random) -> list[SessionRow]:
    sessions = []
    for n in range(count):
        made = await make_session(
            catalog,
            f"s{n:02}",
            owner=chance.choice(["local", "other"]),
            project_id=chance.choice([None, "p", "q"]),
            display_name=chance.choice(NAMES),
            user_metadata={key: chance.choice("xy") for key in chance.sample("abc", chance.randrange(4))},
            now=after(seconds=chance.randrange(10)),  # many at once: ids break the ties
        )
        reason = chance.choice(REASONS)
        if reason is not None:
            made = await catalog.sessions.finish(made.session_id, reason=reason, now=after(minutes=1))  # type: ignore[arg-type]
        sessions.append(made)
    return sorted(sessions, key=lambda session: (session.created_at, session.session_id), reverse=True)


def any_query(chance: random.Random) -> SessionQuery:
    def sometimes(value: Any) -> Any:
        return value if chance.random() < 0.4 else None

    statuses = [
        StatusFilter("active"),
        StatusFilter("cancelled"),
        StatusFilter("failed"),
        StatusFilter("client_finished"),
        StatusFilter("client_finished", ["success", "errored"]),
    ]
    return SessionQuery(
        owners=sometimes(chance.choice([["local"], ["other", "local"], ["nobody"], []])),
        session_id=sometimes(f"s{chance.randrange(60):02}"),
        display_name=sometimes(chance.choice(["sweep", "ONE sweep", "%", "_", " ", "STRASSE", "e t"])),
        project_ids=sometimes(chance.choice([["p"], ["p", "q"], []])),
        user_metadata=sometimes({chance.choice("abcd"): chance.choice("xy")}) or {},
        statuses=sometimes(chance.sample(statuses, chance.randrange(3))),
        limit=chance.choice([1, 3, 7, 200]),
    )


def matches(query: SessionQuery, session: SessionRow) -> bool:
    words = (query.display_name or "").casefold().split()
    named = [session.session_id == query.session_id] if query.session_id is not None else []
    if words:
        name = session.display_name
        named.append(name is not None and all(word in name.casefold() for word in words))
    return (
        (not named or any(named))
        and (query.owners is None or session.owner in query.owners)
        and (query.project_ids is None or session.project_id in query.project_ids)
        and all(session.user_metadata.get(key) == value for key, value in query.user_metadata.items())
        and (query.statuses is None or any(has_status(wanted, session) for wanted in query.statuses))
    )


def has_status(wanted: StatusFilter, session: SessionRow) -> bool:
    by_client = session.finish_reason in ("success", "errored", "interrupted")
    if wanted.status == "active":
        return not session.is_finished
    if wanted.status == "client_finished":
        return by_client and (wanted.reasons is None or session.finish_reason in wanted.reasons)
    return session.finish_reason == wanted.status


async def all_pages(catalog: Catalog, query: SessionQuery) -> list[SessionRow]:
    found: list[SessionRow] = []
    cursor: SessionCursor | None = None
    while True:
        conditions = {name: getattr(query, name) for name in SessionQuery.__slots__}
        page: SessionPage = await catalog.sessions.search(SessionQuery(**{**conditions, "cursor": cursor}), now=NOW)
        assert len(page.sessions) <= query.limit
        found += [summary.session for summary in page.sessions]
        cursor = page.next_cursor
        if cursor is None:
            return found
        assert len(page.sessions) == query.limit


async def test_searches_find_what_a_plain_filter_finds_in_its_order(catalog: Catalog) -> None:
    chance = random.Random(7)
    sessions = await populate(catalog, 60, chance)
    sizes = []

    for _ in range(80):
        query = any_query(chance)
        expected = [session for session in sessions if matches(query, session)]
        assert await all_pages(catalog, query) == expected, query
        sizes.append(len(expected))

    assert 0 in sizes and max(sizes) == 60 and len(set(sizes)) > 10  # the queries were worth asking


@pytest.mark.parametrize("key", ["plain", 'a"b', "a.b", "$[0]", "schlüssel", "\\", "", "'; --", "\n"])
async def test_any_metadata_key_can_be_searched(catalog: Catalog, key: str) -> None:
    await make_session(catalog, "with", user_metadata={key: "1", "other": "2"})
    await make_session(catalog, "without", user_metadata={"other": "1"})

    assert await ids(catalog, user_metadata={key: "1"}) == ["with"]
    assert await ids(catalog, user_metadata={key: "1", "other": "2"}) == ["with"]
    assert await ids(catalog, user_metadata={key: "2"}) == []


async def test_names_match_without_case_in_any_script(catalog: Catalog) -> None:
    await make_session(catalog, "s", display_name="Größter ΣΊΣΥΦΟΣ cafe\u0301")

    assert await ids(catalog, display_name="GRÖSSTER") == ["s"]
    assert await ids(catalog, display_name="σίσυφος größter") == ["s"]
    assert await ids(catalog, display_name="CAFÉ") == ["s"]
    assert await ids(catalog, display_name="größter absent") == []


async def test_an_id_or_a_name_is_enough(catalog: Catalog) -> None:
    await make_session(catalog, "s1", display_name="alpha")
    await make_session(catalog, "s2", display_name="beta")
    await make_session(catalog, "s3", display_name="gamma")

    assert await ids(catalog, session_id="s1", display_name="BETA") == ["s2", "s1"]


async def test_summaries_count_what_is_published_and_not_expired(catalog: Catalog) -> None:
    for name in ("s", "t"):
        await make_session(catalog, name)
    for n in range(2):
        await make_run(catalog, "s", n)
    await save(catalog, "a", run_id="s:train:0", size_bytes=10)
    await save(catalog, "a", run_id="s:train:0", kind="sampler_weights", size_bytes=2**40)
    damaged = await save(catalog, "b", run_id="s:train:1", size_bytes=1)
    await save(catalog, "old", run_id="s:train:1", expires_at=after(hours=-1), now=after(hours=-2))
    await begin(catalog, "unfinished", size_bytes=1000)
    await catalog.checkpoints.mark_damaged(damaged.save_id, "bad block")

    page = await catalog.sessions.search(SessionQuery(), now=NOW)

    summaries = {each.session.session_id: each for each in page.sessions}
    assert (summaries["s"].checkpoints_count, summaries["s"].checkpoint_storage_bytes) == (3, 2**40 + 11)
    assert (summaries["t"].checkpoints_count, summaries["t"].checkpoint_storage_bytes) == (0, 0)


async def test_sessions_made_meanwhile_do_not_shift_pages(catalog: Catalog) -> None:
    for n in range(4):
        await make_session(catalog, f"s{n}", now=after(seconds=n))

    first = await catalog.sessions.search(SessionQuery(limit=2), now=NOW)
    await make_session(catalog, "new", now=after(seconds=9))

    assert first.next_cursor == SessionCursor(after(seconds=2), "s2")
    assert await ids(catalog, limit=2, cursor=first.next_cursor) == ["s1", "s0"]
