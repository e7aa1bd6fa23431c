from __future__ import annotations

import pytest

from chockstone.api.admission.hosts import Hosts, is_loopback, name_of


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:8000", "localhost"),
        ("127.0.0.1:8000", "127.0.0.1"),
        ("[::1]:8000", "::1"),
        ("", None),
        ("a b", None),
        ("host:port", None),
        ("host:123456", None),
        ("user@host", None),
        ("host/path", None),
    ],
)
def test_the_name_in_a_host_field(host: str, name: str | None) -> None:
    assert name_of(host) == name


def test_a_server_without_keys_answers_to_loopback_names_and_its_public_one() -> None:
    hosts = Hosts("https://models.example.com/base")

    assert all(map(hosts.allows, ["localhost", "127.0.0.9:1", "[::1]", "models.example.com"]))
    assert not any(map(hosts.allows, ["evil.example", "models.example.com.evil.example", "10.0.0.1", ""]))
    assert not Hosts(None).allows("models.example.com")


def test_an_origin_is_allowed_by_its_host() -> None:
    hosts = Hosts(None)

    assert hosts.allows_origin("http://localhost:3000")
    assert not any(map(hosts.allows_origin, ["null", "https://evil.example", "http://[", ""]))


def test_loopback_is_the_name_or_an_address_of_this_machine() -> None:
    assert is_loopback("localhost") and is_loopback("127.1.2.3") and is_loopback("::1")
    assert not is_loopback("localhost.evil.example") and not is_loopback("0.0.0.0")
