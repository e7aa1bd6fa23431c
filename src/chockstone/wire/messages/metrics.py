"""Metrics of a run: points that the server recorded, and points that a client reports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from chockstone.wire.messages.schema import Request, Response

MAX_POSTED_POINTS = 1000
MAX_POSTED_VALUES = 20_000  # in all points of a request: they are checked one by one, on the event loop
MAX_SERIES = 64  # of one run
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,63}$")]
_Value = Annotated[float, Field(allow_inf_nan=False)]
_Step = Annotated[int, Field(ge=0, le=2**53 - 1)]
_Time = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]


class PostedPoint(Request):
    """Numbers of one moment of a run: ``{"step": 7, "values": {"reward": 0.5}}``."""

    step: _Step  # optimizer steps so far
    values: Annotated[dict[_Name, _Value], Field(min_length=1, max_length=MAX_SERIES)]  # by name of the series
    at: _Time | None = None  # seconds since 1970; absent: now

    @model_validator(mode="before")
    @classmethod
    def _is_writable(cls, value: object) -> object:
        """All texts are names of series, which have a pattern."""
        return value


class PostMetricsRequest(Request):
    points: Annotated[list[PostedPoint], Field(min_length=1, max_length=MAX_POSTED_POINTS)]

    @model_validator(mode="before")
    @classmethod
    def _is_writable(cls, value: object) -> object:
        """Few enough numbers to be checked, whatever they are."""
        points = value.get("points") if isinstance(value, dict) else None
        if not isinstance(points, list) or len(points) > MAX_POSTED_POINTS:
            return value  # refused by its type or its length
        values = (point.get("values") for point in points if isinstance(point, dict))
        if sum(len(each) for each in values if isinstance(each, dict)) > MAX_POSTED_VALUES:
            raise ValueError(f"The points have more than {MAX_POSTED_VALUES} numbers; send fewer points at a time.")
        return value


class PostMetricsResponse(Response):
    cursor: int  # position of the last of the points


class MetricPoint(Response):
    """The numbers of one operation, or a point that a client reported.

    Older points are merged: such a point stands for ``count`` points, its values are means, and ``loss:min`` and
    ``loss:max`` are the extremes of ``loss``.
    """

    position: int  # in the history of the run: grows by one per point
    at: float  # seconds since 1970
    step: int  # optimizer steps so far
    source: Literal["server", "client"]
    values: dict[str, float]  # by name of the series
    sequence: int | None = None  # of the operation in the journal of the run
    count: int | None = None  # points that it stands for; absent: 1


class RunMetricsResponse(Response):
    run_id: str
    points: list[MetricPoint]
    cursor: int  # for ``after``: the position of the last point that was read
    has_more: bool
