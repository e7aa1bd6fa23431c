"""The overview: what a server does now, asked over HTTP, with the loss curves of its runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from chockstone.cli.remote.addresses import run_route
from chockstone.cli.remote.checkpoint import parse_time
from chockstone.cli.remote.client import Json, NotThere, Server, ServerUnreachable

_ANSWER_SECONDS: Final = 10.0
_RUNS: Final = 50  # that are asked for, the last used first
_CURVES: Final = 20  # runs whose points are asked for
_CURVE_POINTS: Final = 240  # kept of a run
_RECOVERIES: Final = 5
_RATE_SECONDS: Final = 60.0  # over which tokens/s is a mean
_SLEEPING: Final = ("parked", "unloaded")


@dataclass(frozen=True, slots=True)
class RunLine:
    run_id: str
    state: str
    waits_for: str | None
    owner: str
    base_model: str
    step: int | None
    loss: float | None  # mean over the weighted tokens of the last pass; None: not known
    curve: tuple[float, ...]  # of the loss, oldest first
    tokens_per_second: float | None  # None: not known
    queue_depth: int
    oldest_wait_seconds: float | None
    used_at: datetime

    @property
    def is_awake(self) -> bool:
        return self.state not in _SLEEPING


@dataclass(frozen=True, slots=True)
class ServerOverview:
    url: str
    at: datetime
    server: Json  # as GET /server answers
    runs: tuple[RunLine, ...]  # awake ones first, and then the last used first
    recoveries: tuple[Json, ...]  # newest first

    def document(self) -> Json:
        """For ``--json``."""
        runs: list[dict[str, Any]] = [
            {name: getattr(run, name) for name in RunLine.__slots__} | {"curve": list(run.curve)} for run in self.runs
        ]
        return {
            "url": self.url,
            "at": self.at,
            "server": self.server,
            "runs": runs,
            "recoveries": list(self.recoveries),
        }


@dataclass(slots=True)
class _Curve:
    """The newest points of one run."""

    cursor: int = 0
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_CURVE_POINTS))
    tokens: deque[tuple[float, float]] = field(default_factory=deque)  # time and tokens of each pass

    def add(self, points: list[Json], cursor: int) -> None:
        for point in points:
            if (loss := point["values"].get("loss")) is not None:
                self.losses.append(float(loss))
            if (tokens := point["values"].get("tokens")) is not None:
                self.tokens.append((float(point["at"]), float(tokens) * int(point.get("count", 1))))
        self.cursor = max(self.cursor, cursor)

    def rate(self, now: float) -> float | None:
        while self.tokens and self.tokens[0][0] < now - _RATE_SECONDS:
            self.tokens.popleft()
        return sum(tokens for _, tokens in self.tokens) / _RATE_SECONDS if self.tokens else None


class OverviewReader:
    """Asks a server again and again, and for new points only. One thread uses it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._curves: dict[str, _Curve] = {}

    def read(self, *, now: datetime) -> ServerOverview:
        """Raises the errors of ``Server.ask``."""
        described = self._get("server")
        listed = self._get("runs", {"sort": "-last_request", "limit": _RUNS})["runs"]
        recoveries = self._get("recoveries", {"limit": _RECOVERIES})["recoveries"][:_RECOVERIES]
        chosen = sorted(listed, key=lambda run: run["state"] in _SLEEPING)  # keeps the order otherwise
        self._curves = {run["run_id"]: self._curves.get(run["run_id"], _Curve()) for run in chosen[:_CURVES]}
        for run_id, curve in self._curves.items():
            self._read_points(run_id, curve)
        runs = tuple(self._line(run, now) for run in chosen)
        return ServerOverview(self._server.url, now, described, runs, tuple(recoveries))

    def _read_points(self, run_id: str, curve: _Curve) -> None:
        query: dict[str, str | int] = {"names": "loss,tokens", "after": curve.cursor, "limit": 1000}
        if not curve.cursor:
            query["max_points"] = _CURVE_POINTS
        try:
            page = self._get(f"{run_route(run_id)}/metrics", query)
        except NotThere:  # removed a moment ago
            return
        curve.add(page["points"], int(page["cursor"]))

    def _line(self, run: Json, now: datetime) -> RunLine:
        curve = self._curves.get(run["run_id"])
        losses = () if curve is None else tuple(curve.losses)
        return RunLine(
            run_id=run["run_id"],
            state=run["state"],
            waits_for=run.get("waits_for"),
            owner=run["owner"],
            base_model=run["base_model"],
            step=run.get("step"),
            loss=losses[-1] if losses else None,
            curve=losses,
            tokens_per_second=None if curve is None else curve.rate(now.timestamp()),
            queue_depth=run.get("queue_depth", 0),
            oldest_wait_seconds=run.get("oldest_wait_seconds"),
            used_at=parse_time(run["last_request_at"]),
        )

    def _get(self, path: str, query: dict[str, str | int] | None = None) -> Json:
        asked = f"{path}?{urlencode(query)}" if query else path
        return self._server.ask("GET", asked, seconds=_ANSWER_SECONDS)


@dataclass(frozen=True, slots=True)
class Outage:
    """The server does not answer."""

    since: datetime
    reason: str

    def lasts(self, now: datetime) -> timedelta:
        return now - self.since


def outage(error: ServerUnreachable, *, now: datetime, before: Outage | None) -> Outage:
    return Outage(now if before is None else before.since, str(error))
