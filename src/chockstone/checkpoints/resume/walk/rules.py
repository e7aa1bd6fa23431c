"""The settings of a resume. Only ``fresh_start`` makes it start from zero although a checkpoint exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from chockstone.checkpoints.restoring.walk_back import OnUnreadable
from chockstone.checkpoints.resume.attempts.flyte_native import FlyteNativeForm


@dataclass(frozen=True, slots=True)
class ResumeRules:
    on_unreadable: OnUnreadable = "stop"
    legacy: Literal["accept", "reject"] = "accept"  # Flyte's native files, which cannot be verified
    flyte_native: FlyteNativeForm | None = None  # their form; None: there are none here
    poison_after: int | None = None  # skip a checkpoint after so many failed restores; None: never
    deadline_seconds: float = 120.0
    fresh_start: bool = False  # start from zero, whatever exists

    def as_json(self) -> dict[str, Any]:  # Any: plain JSON
        """Return the settings for a report. ``flyte_native`` has the key "stock" there."""
        settings = asdict(self)
        return {"stock" if name == "flyte_native" else name: value for name, value in settings.items()}

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> ResumeRules:  # Any: plain JSON, unchecked
        """Read the settings of a report. An unknown value becomes the default."""
        form, poison_after = settings.get("stock"), settings.get("poison_after")
        return cls(
            on_unreadable="older" if settings.get("on_unreadable") == "older" else "stop",
            legacy="reject" if settings.get("legacy") == "reject" else "accept",
            flyte_native="tree" if form == "tree" else "object" if form == "object" else None,
            poison_after=poison_after if type(poison_after) is int and poison_after > 0 else None,
        )
