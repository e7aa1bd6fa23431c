"""Limits of connections and uploads. Operators set ``body_bytes``; tests shorten the times."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from typing import Final

KEEP_ALIVE_SECONDS: Final = 75
_UNLIMITED_FILES: Final = 65_536


def _three_quarters_of_files() -> int:
    """Leaves a quarter of the file descriptors to journals, archives, the catalog and workers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_UNLIMITED_FILES if soft == resource.RLIM_INFINITY else soft) * 3 // 4


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    head_bytes: int = 64 << 10  # request line and header fields of one request, or trailers
    head_seconds: float = 20.0  # from the connection, or the first byte of a request, to the end of its header fields
    idle_seconds: int = KEEP_ALIVE_SECONDS  # keep-alive: between a response and the next request
    linger_seconds: float = 10.0  # for the rest of a body whose request was answered before its end
    write_seconds: float = 300.0  # without the client taking a byte of a response
    connections: int = field(default_factory=_three_quarters_of_files)


@dataclass(frozen=True, slots=True)
class UploadLimits:
    body_bytes: int  # for tensors and prompts
    json_bytes: int = 8 << 20  # for everything else
    public_bytes: int = 64 << 10  # without a key
    at_once: int = 4  # bodies of ``body_bytes`` in memory, of all callers together
    silence_seconds: float = 60.0  # without a byte of an unfinished body
    bytes_per_second: int = 4 << 10  # on average, after the first ``silence_seconds``
