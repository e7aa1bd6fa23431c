from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi import HTTPException

from chockstone.api import users as module
from chockstone.api.users import Caller, StoredKey, UserDirectory, follow_keys
from chockstone.catalog import Catalog, CatalogUnavailable
from chockstone.catalog.tables.users import KeyRow
from chockstone.engine.ownership.api_keys import digest_of
from support.postgres import catalog_url

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def make_users(**keys: str) -> UserDirectory:
    return UserDirectory(keys, secret=b"s" * 32, now=lambda: datetime.now(UTC))


def stored(user_id: str, key: str, *, revoked: bool = False) -> KeyRow:
    return KeyRow(1, user_id, digest_of(key), key[-4:], "", NOW, NOW if revoked else None)


def refusal(users: UserDirectory, credential: str | None) -> str:
    with pytest.raises(HTTPException) as caught:
        users.identify(credential)
    assert caught.value.status_code == 401
    return str(caught.value.detail)


def test_without_any_key_everyone_is_the_local_user() -> None:
    users = make_users()

    assert users.is_open
    assert users.identify("tml-whatever") == Caller("local")
    assert "start with 'tml-'" in refusal(users, "sk-1")
    assert "no credential" in refusal(users, None)


def test_configured_and_stored_keys_both_work() -> None:
    users = make_users(ann="tml-of-ann")

    users.reload([stored("bob", "tml-of-bob")])

    assert users.identify("tml-of-ann") == Caller("ann")
    assert users.identify("tml-of-bob") == Caller("bob")
    assert "not known" in refusal(users, "tml-other")


def test_the_first_stored_key_closes_the_server_to_all_others() -> None:
    users = make_users()
    token = users.token(users.identify("tml-whatever"))

    users.reload([stored("bob", "tml-of-bob")])

    assert not users.is_open
    assert "not known" in refusal(users, "tml-whatever")
    assert "'local' has no key" in refusal(users, token)


@pytest.mark.parametrize("rows", [[stored("bob", "tml-of-bob", revoked=True)], []])
def test_revoking_the_last_key_lets_nobody_in(rows: list[KeyRow]) -> None:
    users = make_users()
    users.reload([stored("bob", "tml-of-bob")])

    users.reload(rows)

    assert not users.is_open
    assert "not known" in refusal(users, "tml-of-bob")


def test_a_server_that_starts_with_revoked_keys_only_is_not_open() -> None:
    users = make_users()

    users.reload([stored("bob", "tml-of-bob", revoked=True)])

    assert "not known" in refusal(users, "tml-of-bob")


def test_a_token_of_the_time_without_keys_is_not_that_of_a_key_which_its_user_got_later() -> None:
    users = make_users()
    token = users.token(users.identify("tml-whatever"))

    users.reload([stored("local", "tml-of-local")])

    assert "had no API keys" in refusal(users, token)
    assert users.identify(users.token(users.identify("tml-of-local"))) == Caller("local")


def test_a_revoked_key_takes_its_tokens_with_it() -> None:
    users = make_users(ann="tml-of-ann")
    users.reload([stored("bob", "tml-of-bob"), stored("bob", "tml-second")])
    first, second = (users.token(users.identify(key)) for key in ("tml-of-bob", "tml-second"))
    renewed = users.token(users.identify(first))

    users.reload([stored("bob", "tml-of-bob", revoked=True), stored("bob", "tml-second")])
    assert "is revoked" in refusal(users, first)
    assert "is revoked" in refusal(users, renewed)
    assert users.identify(second) == Caller("bob")

    users.reload([stored("bob", "tml-of-bob", revoked=True), stored("bob", "tml-second", revoked=True)])
    assert "'bob' has no key" in refusal(users, second)
    assert users.identify(users.token(users.identify("tml-of-ann"))) == Caller("ann")


def test_a_revoked_row_does_not_touch_the_same_key_configured() -> None:
    users = make_users(ann="tml-of-ann")

    users.reload([stored("bob", "tml-of-ann", revoked=True)])

    assert users.identify("tml-of-ann") == Caller("ann")


def test_tokens_end_and_are_only_ours() -> None:
    users = make_users(ann="tml-of-ann")
    late = UserDirectory({"ann": "tml-of-ann"}, secret=b"s" * 32, now=lambda: datetime.now(UTC) - timedelta(hours=2))
    other = UserDirectory({"ann": "tml-of-ann"}, secret=b"t" * 32, now=lambda: datetime.now(UTC))

    assert "has expired" in refusal(users, late.token(Caller("ann")))
    assert "not signed by this server" in refusal(users, other.token(Caller("ann")))


async def test_keys_are_followed_while_they_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    users = make_users()
    async with await Catalog.open(catalog_url(tmp_path)) as catalog:
        following = asyncio.create_task(follow_keys(users, catalog))

        row = await catalog.keys.add("bob", digest_of("tml-of-bob"), hint="-bob", now=NOW)
        await _until(lambda: not users.is_open)
        assert users.identify("tml-of-bob") == Caller("bob")
        assert users.names == ["bob"]
        await catalog.keys.revoke(row.key_id, now=NOW)
        await _until(lambda: _is_refused(users, "tml-of-bob"))

        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


@pytest.mark.parametrize("error", [CatalogUnavailable("the disk is gone"), RuntimeError("of the driver's own")])
async def test_keys_are_followed_after_whatever_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    caplog.set_level("INFO", logger=module.__name__)
    users = make_users()
    async with await Catalog.open(catalog_url(tmp_path)) as catalog:
        failures: list[Exception] = []

        async def fail() -> tuple[KeyRow, ...]:
            failures.append(error)
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(catalog.keys, "list", fail)
            following = asyncio.create_task(follow_keys(users, catalog))
            await _until(lambda: len(failures) > 2)
        await catalog.keys.add("bob", digest_of("tml-of-bob"), hint="-bob", now=NOW)

        await _until(lambda: not users.is_open)

        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]  # it is told once, and its end


def _is_refused(users: UserDirectory, key: str) -> bool:
    try:
        users.identify(key)
    except HTTPException:
        return True
    return False


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.005)


def test_where_keys_are_required_nobody_is_let_in_before_there_is_one() -> None:
    users = UserDirectory({}, secret=b"s" * 32, now=lambda: datetime.now(UTC), keys_required=True)
    users.reload([])

    with pytest.raises(HTTPException) as refusal:
        users.identify("tml-any")
    assert refusal.value.status_code == 401


async def test_keys_that_were_read_before_a_revocation_do_not_replace_those_read_after_it() -> None:
    users = make_users()
    valid, revoked = [stored("bob", "tml-of-bob")], [stored("bob", "tml-of-bob", revoked=True)]
    may_answer = asyncio.Event()

    async def read_early() -> list[StoredKey]:
        await may_answer.wait()
        return valid

    async def read_late() -> list[StoredKey]:
        return revoked

    early = asyncio.create_task(users.refresh(read_early))
    await asyncio.sleep(0)  # it has begun to read
    late = asyncio.create_task(users.refresh(read_late))
    may_answer.set()
    await asyncio.gather(early, late)

    assert _is_refused(users, "tml-of-bob")
