from __future__ import annotations

import hashlib

import pytest

from chockstone.engine.ownership.api_keys import check_user, digest_of, make_key


def test_keys_are_random_and_hide_in_their_repr() -> None:
    first, second = make_key(), make_key()

    assert first.key != second.key
    assert first.key.startswith("tml-") and len(first.key) == 52
    assert first.key.endswith(first.hint) and len(first.hint) == 4
    assert first.key not in repr(first)
    assert first.digest == digest_of(first.key) == hashlib.sha256(first.key.encode()).hexdigest()


@pytest.mark.parametrize("user", ["ann", "ann@example.org", "a+b", "a-b_c.d", "x" * 255])
def test_a_user_has_a_plain_name(user: str) -> None:
    check_user(user)


@pytest.mark.parametrize("user", ["", "-ann", "a b", "a\n", "a/b", "ä", "x" * 256, "<script>"])
def test_other_names_are_refused(user: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        check_user(user)
