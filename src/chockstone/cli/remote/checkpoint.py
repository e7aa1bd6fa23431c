"""A checkpoint as a server lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from chockstone.cli.output.formatting import format_duration, printable
from chockstone.cli.remote.addresses import route, run_route
from chockstone.cli.remote.client import Json, Server
from chockstone.wire.paths import TinkerPath


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    path: str
    kind: str
    created_at: datetime
    size_bytes: int
    is_public: bool
    expires_at: datetime | None
    damage: str | None  # None: the server knows of none
    metadata: Mapping[str, str]
    entry: Json = field(repr=False, compare=False)  # as the server gave it

    @classmethod
    def of(cls, entry: Json) -> ListedCheckpoint:
        state = entry.get("state") or "ready"
        metadata = dict(entry.get("user_metadata") or {})
        damage = metadata.pop("chockstone.damage", None)
        return cls(
            path=entry["tinker_path"],
            kind=str(entry["checkpoint_id"]).partition("/")[0],
            created_at=parse_time(entry["time"]),
            size_bytes=entry.get("size_bytes") or 0,
            is_public=bool(entry.get("public")),
            expires_at=parse_time(entry["expires_at"]) if entry.get("expires_at") else None,
            damage=None if state == "ready" else str(entry.get("damage") or damage or state),
            metadata=metadata,
            entry=entry,
        )

    def age(self, now: datetime) -> str:
        return format_duration((now - self.created_at).total_seconds())

    def state(self, now: datetime) -> str:
        words = ["ok" if self.damage is None else f"damaged: {printable(self.damage)}"]
        if (gap := self.entry.get("sampler_gap")) is not None:
            words.append(f"vLLM gap {gap:.2g}")
        if self.is_public:
            words.append("public")
        if self.expires_at is not None:
            words.append(f"expires in {format_duration((self.expires_at - now).total_seconds())}")
        return ", ".join(words)


def list_checkpoints(server: Server, run_id: str | None = None) -> list[ListedCheckpoint]:
    """All of a run, or of all runs of the caller, newest first."""
    if run_id is None:
        entries = list(server.pages("checkpoints", "checkpoints"))
    else:
        entries = server.get(f"{run_route(run_id)}/checkpoints")["checkpoints"]
    by_path = {listed.path: listed for listed in map(ListedCheckpoint.of, entries)}
    return sorted(by_path.values(), key=lambda listed: listed.created_at, reverse=True)


def get_checkpoint(server: Server, path: TinkerPath) -> ListedCheckpoint:
    """One that the caller may read. Raises NotThere."""
    return ListedCheckpoint.of(server.get(route(path)))


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
