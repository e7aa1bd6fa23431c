"""Failures: errors of requests, with a category that says who must act.

RequestError
├── BadRequest     the caller must change something: 400, or a failed future of category "user"
│   └── BadParameter   one parameter is wrong, or not supported here
└── ServerFailure  ours: a failed future of category "server"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Category = Literal["user", "server", "unknown"]
Code = Literal[  # what our own rooms act on; others see the message
    "damaged", "missing", "newer", "denied", "unreachable", "no_room", "unsent"
]


class RequestError(Exception):
    category: Category = "unknown"

    def __init__(
        self, message: str, *, code: Code | None = None, needed_bytes: int | None = None, reason: str | None = None
    ) -> None:
        """``needed_bytes``: size of what there is "no_room" for. ``reason``: the finding alone, without who met it."""
        super().__init__(message)
        self.code = code
        self.needed_bytes = needed_bytes
        self.reason = reason


class BadRequest(RequestError):
    category = "user"


class BadParameter(BadRequest):
    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class ServerFailure(RequestError):
    category = "server"


@dataclass(frozen=True, slots=True)
class Failure:
    """How an operation ended that did not succeed; ``encode`` is what ``retrieve_future`` answers."""

    error: str
    category: Category

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, RequestError):
            return cls(str(error), error.category)
        return cls(f"{type(error).__name__}: {error}", "server")

    def encode(self) -> bytes:
        import orjson  # late: the command line uses the errors above in installs without a server

        return orjson.dumps({"error": self.error, "category": self.category})

    @classmethod
    def decode(cls, encoded: bytes) -> Failure:
        import orjson  # late: as above

        values = orjson.loads(encoded)
        return cls(values["error"], values["category"])
