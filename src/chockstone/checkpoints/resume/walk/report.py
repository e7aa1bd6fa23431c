"""The report of a resume: each candidate with its verdict, the choice, and the cost. Contains no credentials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Self

import chockstone
from chockstone.checkpoints.restoring.verdicts import Verdict

RECORD: Final = "resume.json"
MAX_BYTES: Final = 16 * 1024**2  # enough for a thousand places with several generations each
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("place", "outcome", "version", "uri", "origin", "reason", "generation"), (str,)),
    **dict.fromkeys(("attempt", "steps_lost", "requests", "retries", "size_bytes", "step", "status"), (int,)),
    "milliseconds": (int, float),
    "reached": (bool,),
    **dict.fromkeys(("identity", "settings"), (dict,)),
    **dict.fromkeys(("looked", "warnings", "notes"), (list,)),
}
_MAY_BE_NONE: Final = {"attempt", "generation", "step", "status", "steps_lost"}
Outcome = Literal["restored", "resolved", "fresh", "blocked", "exhausted", "superseded"]


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """The verdict on one candidate, or on one of its generations."""

    uri: str
    origin: str
    verdict: Verdict
    reason: str = ""
    attempt: int | None = None
    generation: str | None = None
    step: int | None = None
    status: int | None = None  # HTTP status, if there was one
    requests: int = 0  # including retries
    retries: int = 0
    size_bytes: int = 0
    milliseconds: float = 0.0
    reached: bool = True  # False: the walk ended before it


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """How a resume decided: each candidate with its verdict, the choice, and the cost. ``str`` shows a table."""

    place: str  # of the attempt that resumes
    attempt: int | None
    identity: Mapping[str, str]
    outcome: Outcome
    looked: tuple[CandidateReport, ...]  # in the order of the walk, then those that it did not reach
    choice: CandidateReport | None = None
    steps_lost: int | None = None  # step of the newest commit minus step of the chosen one
    requests: int = 0
    retries: int = 0
    size_bytes: int = 0
    milliseconds: float = 0.0
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # why a path was not derived, what was forwarded
    settings: Mapping[str, Any] = field(default_factory=dict)  # plain JSON
    version: str = chockstone.__version__

    def as_json(self) -> str:
        """Return the report as JSON, which ``from_json`` reads."""
        return json.dumps(asdict(self), indent=1, default=str)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what ``as_json`` returned. Raises ValueError for anything else."""
        try:
            values = _checked(json.loads(text))
            values["looked"] = tuple(_looked(each) for each in values["looked"])
            values["choice"] = None if values["choice"] is None else _looked(values["choice"])
            values["warnings"], values["notes"] = tuple(values["warnings"]), tuple(values["notes"])
            return cls(**values)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a report of a resume: {error}") from error

    def line(self) -> str:
        """Return the report as one log line."""
        chosen = self.choice
        where = f" from={chosen.uri} generation={chosen.generation} step={chosen.step}" if chosen else ""
        lost = "" if self.steps_lost is None else f" steps_lost={self.steps_lost}"
        cost = f"requests={self.requests} bytes={self.size_bytes} ms={self.milliseconds:.0f}"
        return f"resume outcome={self.outcome} place={self.place}{where}{lost} looked={len(self.looked)} {cost}"

    def __str__(self) -> str:
        lines = [self.line()]
        for each in self.looked:
            mark = "*" if each == self.choice else " "
            number = "-" if each.attempt is None else str(each.attempt)
            what = each.generation or "-"
            step = "" if each.step is None else f" step {each.step}"
            lines.append(
                f"{mark} {each.origin:<8} {number:>4} {each.verdict:<12} {what}{step}  {each.uri}  {each.reason}"
            )
        lines += [f"! {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _looked(values: dict[str, Any]) -> CandidateReport:
    return CandidateReport(**{**_checked(values), "verdict": Verdict(values["verdict"])})


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Check the types of the values, so that callers can print them and calculate with them."""
    for name, value in values.items():
        kinds = _KINDS.get(name)
        if kinds and not ((value is None and name in _MAY_BE_NONE) or type(value) in kinds):
            raise TypeError(f"{name} is {type(value).__name__}")
    return values
