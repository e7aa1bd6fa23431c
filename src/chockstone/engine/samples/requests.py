"""Sample requests: what clients ask of samplers, as data that the journal can hold."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chockstone.engine.futures import Promise
from chockstone.engine.samples.completions import CLONE_SPAN
from chockstone.engine.samples.streams import SampleStream
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.telemetry.origin import NO_ORIGIN, RequestOrigin


@dataclass(frozen=True, slots=True)
class SamplerSource:
    """What a sampling session samples from."""

    sampling_session_id: str
    owner: str
    base_model: str
    archive: str | None  # None: the base model itself
    seal: str | None = None  # of the archive, if it is known: an archive with another seal is refused

    @property
    def is_anonymous(self) -> bool:
        return self.archive == ephemeral_name(self.sampling_session_id)

    @property
    def session_id(self) -> str:
        return self.sampling_session_id.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Submitted:
    request_id: str
    num_samples: int

    @property
    def sequence_ids(self) -> tuple[str, ...]:
        """Made when asked for: many requests are remembered, and some have thousands."""
        return tuple(f"{self.request_id}-{index}" for index in range(self.num_samples))


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """All of a request but its body."""

    request_id: str
    source: SamplerSource
    seq_id: int | None
    num_samples: int
    seed: int
    origin: RequestOrigin = NO_ORIGIN  # the HTTP request that asked for it
    is_streamed: bool = False  # a restarted server does not run it again: its client lost the connection

    @property
    def feed(self) -> tuple[str, int]:
        """The sampling session, and the clone of its client that asked."""
        return self.source.sampling_session_id, (self.seq_id or 0) // CLONE_SPAN

    def to_json(self) -> Mapping[str, Any]:  # Any: plain JSON
        facts: dict[str, Any] = {
            "request_id": self.request_id,
            **asdict(self.source),
            "seq_id": self.seq_id,
            "num_samples": self.num_samples,
            "seed": self.seed,
        }
        if self.is_streamed:
            facts["is_streamed"] = True
        return {**facts, "origin": origin} if (origin := self.origin.to_json()) else facts

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SampleFacts:
        source = SamplerSource(
            values["sampling_session_id"],
            values["owner"],
            values["base_model"],
            values["archive"],
            values.get("seal"),  # earlier versions did not record it
        )
        origin = RequestOrigin.from_json(values.get("origin"))  # earlier versions did not record it
        return cls(
            values["request_id"],
            source,
            values["seq_id"],
            values["num_samples"],
            values["seed"],
            origin,
            is_streamed=values.get("is_streamed", False),
        )


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What a sample used, as the journal records it with the result."""

    owner: str
    session_id: str
    base_model: str
    prompt_tokens: int
    tokens: int  # that were generated
    ended_at: int  # seconds since 1970

    def to_json(self) -> Mapping[str, Any]:  # Any: plain JSON
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> SampledTokens | None:
        """None: the sample failed, or an earlier version recorded it and counted it itself."""
        if not all(name in facts for name in cls.__slots__):
            return None
        return cls(**{name: facts[name] for name in cls.__slots__})


@dataclass(slots=True, eq=False)
class PendingSample:
    """A request in progress."""

    promise: Promise
    facts: SampleFacts
    body: bytes
    stream: SampleStream | None = None  # None: the client waits for the result alone
    written: asyncio.Future[None] | None = None  # None: it is durable already, or no journal is kept
    deaths: int = 0  # of workers, while it ran
    server_deaths: int = 0  # of servers, while it ran
    is_sent: bool = False  # to the worker that runs now
    counts_as_suspect: bool = True  # if this server died now, the journal would count this request as a suspect
    queued_at: float = 0.0  # seconds since 1970
    begun_at: float = 0.0  # when it was last sent to a worker; 0: never

    @property
    def request_id(self) -> str:
        return self.facts.request_id


def request_id_of(sampling_session_id: str, seq_id: int) -> str:
    """A retried request has the same id, also on the next server."""
    return f"{sampling_session_id}:{seq_id}"


def seed_of(request_id: str, source: SamplerSource, seq_id: int | None) -> int:
    """For a request without a seed of its own: fixed, so that running it again gives the same tokens."""
    name = request_id if seq_id is None else f"{source.sampling_session_id}/{seq_id}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
