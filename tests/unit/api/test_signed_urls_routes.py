"""Signed URLs over HTTP: each reaches one thing, for as long as the key that asked for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.catalog.tables.users import KeyRow
from chockstone.engine.ownership.api_keys import digest_of
from support.api.users import User, refusal, url_of
from support.served import Served


async def test_a_signed_url_reaches_nothing_else(served: Served, context: Context, ann: User) -> None:
    session_id = await ann.session()
    path = await ann.save(await ann.run(session_id), "mine")
    trace = (await ann.http.get(f"sessions/{session_id}/trace_export")).json()["url"]
    archive = (await ann.http.get(url_of(path, "archive"))).headers["location"]
    token = trace.partition("/traces/")[2].partition("/")[0]

    for url in (
        trace.replace("/traces/", "/downloads/"),
        archive.replace("/downloads/", "/traces/"),
        trace.replace(token, token[:-2] + ("AA" if token[-2:] != "AA" else "BB")),
        trace.replace(token, "x" + token),
        trace.replace(token, "."),
        trace.replace(token, "x"),
    ):
        answer = await served.http.get(url, headers={"X-API-Key": ""})
        assert answer.status_code in (401, 403, 404), url
        assert answer.json()["detail"]
    expired = context.now() - timedelta(seconds=1)
    late = context.signed_urls.sign(Caller("ann"), {"trace": session_id}, expires_at=expired)
    answer = await served.http.get(trace.replace(token, late), headers={"X-API-Key": ""})
    assert "expired" in refusal(answer, 410)


async def test_a_signed_url_ends_with_the_key_that_asked_for_it(
    served: Served, context: Context, ann: User, bob: User
) -> None:
    rows = [KeyRow(1, "ann", digest_of("tml-second"), "cond", "", context.now(), None)]
    context.users.reload(rows)
    session_id = await ann.session()
    path = await ann.save(await ann.run(session_id), "mine")
    second = {"X-API-Key": "tml-second"}
    token = {"X-API-Key": (await ann.http.post("auth/token", headers=second)).json()["jwt"]}

    async def urls(headers: dict[str, str]) -> list[str]:
        archive = (await ann.http.get(url_of(path, "archive"), headers=headers)).headers["location"]
        return [archive, (await ann.http.get(f"sessions/{session_id}/trace_export", headers=headers)).json()["url"]]

    async def statuses(urls: list[str]) -> list[int]:
        return [(await served.http.get(url, headers={"X-API-Key": ""})).status_code for url in urls]

    of_first, of_second, of_token = await urls({}), await urls(second), await urls(token)
    assert await statuses(of_first + of_second + of_token) == [200] * 6

    context.users.reload([replace(row, revoked_at=context.now()) for row in rows])

    assert await statuses(of_first) == [200] * 2
    assert await statuses(of_second + of_token) == [403] * 4
