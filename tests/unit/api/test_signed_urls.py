"""Tokens of signed URLs: accepted as they were signed, refused in any other spelling."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import jwt
import pytest

from chockstone.api.signed_urls import ExpiredToken, ForeignToken, TokenSigner

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
PAYLOAD = {"save_id": 7, "member": "adapter_config.json"}
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@pytest.fixture
def signer() -> TokenSigner:
    return TokenSigner(b"s" * 32)


def test_what_was_signed_is_read_back(signer: TokenSigner) -> None:
    token = signer.sign(PAYLOAD, expires_at=LATER)

    assert signer.read(token, now=NOW) == {**PAYLOAD, "exp": int(LATER.timestamp())}


def test_the_same_words_have_one_token(signer: TokenSigner) -> None:
    swapped = dict(reversed(PAYLOAD.items()))

    assert signer.sign(PAYLOAD, expires_at=LATER) == signer.sign(swapped, expires_at=LATER)


def test_it_is_over_at_its_expiry_and_not_a_moment_before(signer: TokenSigner) -> None:
    token = signer.sign(PAYLOAD, expires_at=LATER)

    assert signer.read(token, now=LATER - timedelta(microseconds=1))["save_id"] == 7
    with pytest.raises(ExpiredToken) as refusal:
        signer.read(token, now=LATER)
    assert refusal.value.status_code == 410
    assert "expired at 2026-03-01 13:00:00 UTC" in refusal.value.detail


def test_no_other_spelling_of_a_token_is_believed(signer: TokenSigner) -> None:
    """Each character replaced by every other one: among them those whose last bits base64 ignores."""
    token = signer.sign(PAYLOAD, expires_at=LATER)
    others = [
        token[:place] + letter + token[place + 1 :]
        for place in range(len(token))
        for letter in ALPHABET
        if letter != token[place]
    ]

    for other in others:
        with pytest.raises(ForeignToken):
            signer.read(other, now=NOW)


def test_the_last_bits_that_base64_ignores_count(signer: TokenSigner) -> None:
    token = signer.sign(PAYLOAD, expires_at=LATER)
    head, _, mac = token.rpartition(".")
    same_bytes = [
        f"{head}.{mac[:-1]}{letter}"
        for letter in ALPHABET
        if base64.urlsafe_b64decode(f"{mac[:-1]}{letter}=") == base64.urlsafe_b64decode(f"{mac}=")
    ]

    assert len(same_bytes) > 1, "the point of this test"
    for other in same_bytes:
        if other != token:
            with pytest.raises(ForeignToken):
                signer.read(other, now=NOW)


def test_rubbish_is_refused(signer: TokenSigner) -> None:
    token = signer.sign(PAYLOAD, expires_at=LATER)
    head, _, mac = token.rpartition(".")
    rubbish = [
        *("", ".", "..", "x", head, f"{head}.", f".{mac}", f"{token}=", f"{token}.", f" {token}", f"{token}\n"),
        *(f"{head}=.{mac}", f"{head}.{mac}.{mac}", "é.ü", "\udcff.\udcff", f"{head}.{mac}\udcff", "A" * 100_000),
        token.replace("-", "+").replace("_", "/") + "\0",
    ]

    for each in rubbish:
        with pytest.raises(ForeignToken) as refusal:
            signer.read(each, now=NOW)
        assert refusal.value.status_code == 403


def test_another_secret_signs_other_tokens(signer: TokenSigner) -> None:
    with pytest.raises(ForeignToken):
        signer.read(TokenSigner(b"t" * 32).sign(PAYLOAD, expires_at=LATER), now=NOW)


def test_what_else_is_signed_with_the_secret_is_no_token(signer: TokenSigner) -> None:
    """A token of a user is signed with the secret itself; the two can never be taken for each other."""
    claims = {**PAYLOAD, "aud": "url", "exp": int(LATER.timestamp())}

    with pytest.raises(ForeignToken):
        signer.read(jwt.encode(claims, b"s" * 32, algorithm="HS256"), now=NOW)


def test_an_unsigned_token_is_refused(signer: TokenSigner) -> None:
    claims = {**PAYLOAD, "aud": "url", "exp": int(LATER.timestamp())}

    with pytest.raises(ForeignToken):
        signer.read(jwt.encode(claims, None, algorithm="none"), now=NOW)
