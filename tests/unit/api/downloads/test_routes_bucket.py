"""Downloads of a server whose archives are in a bucket: whole ones from there, single files from here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from chockstone.api.context import Context
from chockstone.engine.config import StorageRules
from support.api.users import User, url_of
from support.served import Served, serve_in_process
from support.stores import S3Place, open_place, place_in, shared_endpoint


@pytest.fixture
def place() -> S3Place:
    return place_in(shared_endpoint())


@pytest.fixture
async def served(place: S3Place, tmp_path: Path, models: dict[str, Path], rules: StorageRules) -> AsyncIterator[Served]:
    async with serve_in_process(tmp_path, models, rules=rules, store=open_place(place)) as served:
        yield served


@pytest.fixture
def user(served: Served) -> User:
    return User("local", served.http)


async def url(user: User, path: str) -> str:
    answer = await user.http.get(url_of(path, "archive"))
    assert answer.status_code == 302
    return str(answer.headers["location"])


async def test_whole_archives_come_from_the_bucket(user: User, place: S3Place) -> None:
    path = await user.save(await user.run(), "a")

    answer = await user.http.get(await url(user, path))

    assert answer.status_code == 302
    assert answer.headers["location"].startswith(f"{place.endpoint}/{place.bucket}/{place.prefix}/")
    async with httpx.AsyncClient() as plain:
        fetched = await plain.get(answer.headers["location"])
    assert len(fetched.content) == (await user.entry(path))["size_bytes"]


async def test_a_relay_sends_them_itself(user: User, context: Context) -> None:
    path = await user.save(await user.run(), "a")
    context.config = replace(context.config, downloads="relay")

    whole = await user.http.get(await url(user, path))
    last = await user.http.get(await url(user, path), headers={"Range": "bytes=-7"})

    assert (whole.status_code, len(whole.content)) == (200, (await user.entry(path))["size_bytes"])
    assert (last.status_code, last.content) == (206, whole.content[-7:])


async def test_nobody_is_sent_to_what_is_not_there(user: User, served: Served) -> None:
    path = await user.save(await user.run(), "a")
    signed = await url(user, path)
    [entry] = served.backend.store.entries()
    served.backend.store.delete(entry.name)

    answer = await user.http.get(signed)

    assert answer.status_code == 404
    assert (await user.entry(path))["state"] == "damaged"
