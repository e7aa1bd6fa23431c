from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from fastapi import HTTPException, Response

from chockstone.api.users import UserDirectory
from chockstone.console.session import COOKIE, LIFETIME, BrowserSessions

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
KEYS = {"ann": "tml-of-ann", "bob": "tml-of-bob"}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_sessions(clock: Clock, *, secret: bytes = b"s" * 32, keys: dict[str, str] | None = None) -> BrowserSessions:
    users = UserDirectory(KEYS if keys is None else keys, secret=secret, now=clock)
    return BrowserSessions(secret, users, cookie_path="/console", now=clock)


def sign_in(sessions: BrowserSessions, key: str = "tml-of-ann", *, is_secure: bool = False) -> str:
    """The ``Set-Cookie`` field."""
    response = Response()
    sessions.begin(response, key, is_secure=is_secure)
    return response.headers["set-cookie"]


def cookie_of(field: str) -> str:
    return field.partition(";")[0]


def test_the_cookie_identifies_its_user_until_it_expires(clock: Clock) -> None:
    sessions = make_sessions(clock)
    cookie = cookie_of(sign_in(sessions))

    session = sessions.find([cookie])
    clock.now = NOW + LIFETIME - timedelta(seconds=2)
    before = sessions.find([cookie])
    clock.now = NOW + LIFETIME
    after = sessions.find([cookie])

    assert session is not None and session.caller.user_id == "ann" and session.is_signed_in
    assert before == session
    assert after is None


def test_scripts_other_sites_and_other_paths_do_not_get_the_cookie(clock: Clock) -> None:
    plain = sign_in(make_sessions(clock))
    secure = sign_in(make_sessions(clock), is_secure=True)

    attributes = {part.strip().lower() for part in plain.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/console"} <= attributes
    assert "secure" not in attributes
    assert "secure" in {part.strip().lower() for part in secure.split(";")[1:]}


def test_the_cookie_does_not_contain_the_key(clock: Clock) -> None:
    assert "tml-of-ann" not in sign_in(make_sessions(clock))


def test_a_revoked_key_ends_its_sessions_only(clock: Clock) -> None:
    before = make_sessions(clock)
    ann, bob = cookie_of(sign_in(before)), cookie_of(sign_in(before, "tml-of-bob"))

    after = make_sessions(clock, keys={"bob": "tml-of-bob"})

    assert after.find([ann]) is None
    assert after.find([bob]) is not None


def test_a_new_key_of_the_same_user_does_not_revive_a_session(clock: Clock) -> None:
    cookie = cookie_of(sign_in(make_sessions(clock)))

    assert make_sessions(clock, keys={"ann": "tml-another"}).find([cookie]) is None


@pytest.mark.parametrize("change", ["", "x", "x" * 10_000, "eyJhbGciOiJub25lIn0.e30.", "a.b.c"])
def test_forged_cookies_are_nobodys(clock: Clock, change: str) -> None:
    assert make_sessions(clock).find([f"{COOKIE}={change}"]) is None


def test_a_changed_cookie_is_refused(clock: Clock) -> None:
    sessions = make_sessions(clock)
    cookie = cookie_of(sign_in(sessions))

    for index in range(len(COOKIE) + 1, len(cookie), 7):
        changed = cookie[:index] + ("A" if cookie[index] != "A" else "B") + cookie[index + 1 :]
        assert sessions.find([changed]) is None, index


def test_tokens_of_the_api_and_of_other_servers_are_no_cookies(clock: Clock) -> None:
    users = UserDirectory(KEYS, secret=b"s" * 32, now=clock)
    token = users.token(users.identify("tml-of-ann"))
    foreign = cookie_of(sign_in(make_sessions(clock, secret=b"t" * 32)))

    assert make_sessions(clock).find([f"{COOKIE}={token}"]) is None
    assert make_sessions(clock).find([foreign]) is None


def test_two_cookies_of_our_name_are_refused(clock: Clock) -> None:
    sessions = make_sessions(clock)
    ann, bob = cookie_of(sign_in(sessions)), cookie_of(sign_in(sessions, "tml-of-bob"))

    assert sessions.find([f"{ann}; {bob}"]) is None
    assert sessions.find([ann, bob]) is None
    assert sessions.find([f"other=1; {ann}"]) is not None


def test_unknown_keys_and_api_tokens_do_not_sign_in(clock: Clock) -> None:
    users = UserDirectory(KEYS, secret=b"s" * 32, now=clock)
    sessions = make_sessions(clock)

    for credential in ("tml-guess", "", users.token(users.identify("tml-of-ann"))):
        with pytest.raises(HTTPException) as refused:
            sign_in(sessions, credential)
        assert refused.value.status_code == 401


def test_each_session_has_a_token_of_its_own(clock: Clock) -> None:
    sessions = make_sessions(clock)
    ann, bob = cookie_of(sign_in(sessions)), cookie_of(sign_in(sessions, "tml-of-bob"))

    found = [sessions.find([each]) for each in (ann, bob)]

    assert len({each.token for each in found if each is not None}) == 2


def test_a_server_without_keys_asks_for_none_and_still_has_a_token(clock: Clock) -> None:
    session = make_sessions(clock, keys={}).find([])

    assert session is not None
    assert (session.caller.user_id, session.is_signed_in) == ("local", False)
    assert len(session.token) == 64


def test_signing_out_deletes_the_cookie(clock: Clock) -> None:
    response = Response()

    make_sessions(clock).end(response, is_secure=False)

    assert response.headers["set-cookie"].startswith(f'{COOKIE}=""; ')
    assert "Max-Age=0" in response.headers["set-cookie"]
