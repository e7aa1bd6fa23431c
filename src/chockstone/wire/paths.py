"""Tinker paths: ``tinker://<run id>/<kind>/<name>``, the name of a checkpoint everywhere.

Parsing is strict, like the clients'. Run ids and names are used in URLs and file names as they are, so they contain
nothing that would have to be escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from chockstone.wire.failures import BadRequest

SCHEME: Final = "tinker://"
MAX_NAME_CHARACTERS: Final = 255
MAX_RUN_ID_CHARACTERS: Final = 255
LATEST: Final = "latest"  # in the place of a name: the newest checkpoint that verifies

NAME_RULE: Final = (
    f"A name has 1 to {MAX_NAME_CHARACTERS} characters out of A-Z a-z 0-9 . _ - and is not '.' or '..', "
    f"nor {LATEST!r}, which stands for the newest checkpoint."
)

CheckpointType = Literal["training", "sampler", "external"]

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_CHARACTERS}}}")
_RUN_ID: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_RUN_ID_CHARACTERS}}}")


class Kind(StrEnum):
    """What a checkpoint holds. The same name may stand in each kind."""

    WEIGHTS = "weights"
    SAMPLER_WEIGHTS = "sampler_weights"
    EXTERNAL_WEIGHTS = "external_weights"

    @property
    def checkpoint_type(self) -> CheckpointType:
        return _TYPES[self]

    @classmethod
    def parse(cls, word: str) -> Kind:
        try:
            return cls(word)
        except ValueError as error:
            raise BadRequest(f"{word[:80]!r} is not a kind of checkpoint. Use {', '.join(cls)}.") from error


_TYPES: Final[dict[Kind, CheckpointType]] = {
    Kind.WEIGHTS: "training",
    Kind.SAMPLER_WEIGHTS: "sampler",
    Kind.EXTERNAL_WEIGHTS: "external",
}


@dataclass(frozen=True, slots=True)
class TinkerPath:
    """One checkpoint. Made by ``parse``, or by ``of`` from parts that are still to be checked."""

    run_id: str
    kind: Kind
    name: str

    @classmethod
    def of(cls, run_id: str, kind: Kind | str, name: str) -> TinkerPath:
        return cls(check_run_id(run_id), Kind.parse(kind), name if name == LATEST else check_name(name))

    @classmethod
    def parse(cls, text: str) -> TinkerPath:
        parts = text.removeprefix(SCHEME).split("/", maxsplit=3)
        if not text.startswith(SCHEME) or len(parts) != 3:
            raise BadRequest(
                f"{text[:300]!r} is not a checkpoint. Paths are {SCHEME}<run id>/<kind>/<name>, "
                f"where kind is one of {', '.join(Kind)}."
            )
        return cls.of(*parts)

    @property
    def is_latest(self) -> bool:
        return self.name == LATEST

    @property
    def checkpoint_id(self) -> str:
        """Unique within the run."""
        return f"{self.kind.value}/{self.name}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.run_id}/{self.kind.value}/{self.name}"


def check_name(name: str) -> str:
    """``name`` itself, if a checkpoint may have it."""
    if not _NAME.fullmatch(name) or name in (".", "..", LATEST):
        raise BadRequest(f"{name[:300]!r} cannot name a checkpoint. {NAME_RULE}")
    return name


def check_run_id(run_id: str) -> str:
    """``run_id`` itself, if it could be one; whether there is such a run is the catalog's to say."""
    if not _RUN_ID.fullmatch(run_id) or run_id in (".", ".."):
        raise BadRequest(
            f"{run_id[:300]!r} is not a run id. Run ids have 1 to {MAX_RUN_ID_CHARACTERS} characters out of "
            f"A-Z a-z 0-9 . _ : -."
        )
    return run_id
