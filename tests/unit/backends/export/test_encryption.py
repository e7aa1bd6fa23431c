from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pyrage
import pytest

from chockstone.backends.export.encryption import parse_recipients
from chockstone.wire.failures import BadRequest


def public_key() -> str:
    return str(pyrage.x25519.Identity.generate().to_public())


@pytest.mark.parametrize("count", [1, 10])
def test_public_keys_are_taken(count: int) -> None:
    assert len(parse_recipients([public_key() for _ in range(count)])) == count


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_keys_of_ssh_are_taken(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "ann@home", "-f", path], check=True)

    keys: list[Any] = parse_recipients([path.with_suffix(".pub").read_text().strip()])

    sealed = pyrage.encrypt(b"text", keys)
    assert pyrage.decrypt(sealed, [pyrage.ssh.Identity.from_buffer(path.read_bytes())]) == b"text"


@pytest.mark.parametrize("count", [0, 11])
def test_there_are_one_to_ten(count: int) -> None:
    with pytest.raises(BadRequest, match=f"has {count} entries; give 1 to 10 public keys"):
        parse_recipients([public_key()] * count)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("", "start with 'age1'"),
        ("ann@example.org", "start with 'age1'"),
        ("age1nothing", "invalid"),
        (" age1", "start with 'age1'"),
        ("age1" + "q" * 5000, "invalid"),
        ("ssh-ed25519 AAAA", "invalid"),
        ("ssh-dss AAAA", "invalid"),
        ("ä", "start with 'age1'"),
    ],
)
def test_what_is_no_key_is_named(wrong: str, why: str) -> None:
    with pytest.raises(BadRequest, match=rf"age_encryption_recipients\[1\].*{why}") as caught:
        parse_recipients([public_key(), wrong])

    assert len(str(caught.value)) < 400


def test_a_secret_key_is_refused_and_not_repeated() -> None:
    secret = str(pyrage.x25519.Identity.generate())

    with pytest.raises(BadRequest, match="it is a secret key") as caught:
        parse_recipients([secret])

    assert secret[20:] not in str(caught.value)
