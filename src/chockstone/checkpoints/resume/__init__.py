"""Resume: a chain of attempts, each going on where the newest good checkpoint of any before it stands.

Knows nothing of platforms; ``chockstone.integrations`` tells it where their attempts are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chockstone.checkpoints.resume.audits import explain, recorded
    from chockstone.checkpoints.resume.report import Report
    from chockstone.checkpoints.resume.resume import Resume
    from chockstone.checkpoints.resume.verdicts import Verdict

__all__ = ["Report", "Resume", "Verdict", "explain", "recorded"]
_HOMES = {
    "Report": "report",
    "Resume": "resume",
    "Verdict": "verdicts",
    "explain": "audits",
    "recorded": "audits",
}


def __getattr__(name: str) -> object:
    """On demand: the checkpointer that ``Resume`` saves with walks back by this room's rules itself."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
