"""Hosts: the host names that a server without keys answers to.

A web page can have its own host name resolve to 127.0.0.1 (DNS rebinding) and then speak to a server on the
visitor's machine. The browser sends the page's host name in ``Host``, so the server can refuse such requests.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")


class Hosts:
    def __init__(self, public_url: str | None) -> None:
        self._public = None if public_url is None else urlsplit(public_url).hostname

    def allows(self, host: str) -> bool:
        """Whether ``host``, as it stands in a ``Host`` field, is a loopback name or the name in the public URL."""
        name = name_of(host)
        return name is not None and (is_loopback(name) or name == self._public)

    def allows_origin(self, origin: str) -> bool:
        """``origin`` is as in an ``Origin`` field; ``null`` has no host and is refused."""
        try:
            return self.allows(urlsplit(origin).netloc)
        except ValueError:
            return False


def name_of(host: str) -> str | None:
    """The name or address in a ``Host`` field, without its port; None: it is malformed."""
    found = _HOST.fullmatch(host)
    return None if found is None else found[1].strip("[]").lower()


def is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
