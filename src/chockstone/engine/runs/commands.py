"""Commands: what a client may ask of a run. A command is journalled, queued and executed as itself.

``name`` and ``to_json`` are the journal format. Journals written by earlier versions must stay readable: a key that
an earlier version did not write has a default in ``from_json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

from chockstone.catalog import CheckpointKind, CheckpointRow
from chockstone.engine.storage.verification import SkippedCheckpointRow
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import Kind, TinkerPath

Json = Mapping[str, Any]  # Any: plain JSON


@dataclass(frozen=True, slots=True)
class LoadSource:
    """A checkpoint to load, as it was when the client asked for it."""

    run_id: str
    kind: CheckpointKind
    name: str
    path: str
    save_id: int
    base_model: str

    @classmethod
    def of(cls, row: CheckpointRow) -> LoadSource:
        return cls(row.run_id, row.kind, row.name, row.path, row.save_id, row.base_model)


@dataclass(frozen=True, slots=True)
class Load:
    """Load a checkpoint. ``skipped``: newer checkpoints that ``latest`` could not use; the result names them."""

    name: ClassVar[str] = "load"
    source: LoadSource
    with_optimizer: bool
    skipped: tuple[SkippedCheckpointRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "source": asdict(self.source),
            "with_optimizer": self.with_optimizer,
            "skipped": [asdict(each) for each in self.skipped],
        }

    @classmethod
    def from_json(cls, found: Json) -> Load:
        skipped = tuple(SkippedCheckpointRow(**each) for each in found["skipped"])
        return cls(LoadSource(**found["source"]), found["with_optimizer"], skipped)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Create the run, and load a checkpoint into it if ``load`` is given. The first command of every run."""

    name: ClassVar[str] = "open"
    load: Load | None = None

    def to_json(self) -> dict[str, Any]:
        return {} if self.load is None else self.load.to_json()

    @classmethod
    def from_json(cls, found: Json) -> OpenRun:
        return cls(Load.from_json(found) if found.get("source") is not None else None)


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Compute losses, and gradients unless the request says forward only.

    The body is the request itself, and then the records of routing to compute with.
    """

    name: ClassVar[str] = "pass"
    loss_id: str | None = None  # of the custom loss that the body names
    elementwise_loss: bool = True  # False: written by a version whose results had no loss per position
    has_loss_id: bool = True  # False: written by a version that did not record ``loss_id``; the body has it
    routing_bytes: int = 0  # at the end of the body

    def to_json(self) -> dict[str, Any]:
        elementwise = {"elementwise_loss": True} if self.elementwise_loss else {}
        routing = {"routing_bytes": self.routing_bytes} if self.routing_bytes else {}
        return elementwise | ({"loss_id": self.loss_id} if self.has_loss_id else {}) | routing

    @classmethod
    def from_json(cls, found: Json) -> ForwardBackward:
        return cls(
            found.get("loss_id"),
            bool(found.get("elementwise_loss", False)),
            "loss_id" in found,
            int(found.get("routing_bytes", 0)),
        )


@dataclass(frozen=True, slots=True)
class StepOptimizer:
    """Apply the accumulated gradient."""

    name: ClassVar[str] = "optim_step"
    params: Json  # as the client sent them

    def to_json(self) -> dict[str, Any]:
        return {"params": dict(self.params)}

    @classmethod
    def from_json(cls, found: Json) -> StepOptimizer:
        return cls(found["params"])


@dataclass(frozen=True, slots=True)
class Save:
    """Save a checkpoint under a path."""

    name: ClassVar[str] = "save"
    path: TinkerPath
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    recipients: tuple[str, ...] = ()  # age public keys that external weights are encrypted to; empty: plain files

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "ttl_seconds": self.ttl_seconds,
            "overwrite": self.overwrite,
            "user_metadata": dict(self.user_metadata),
            "recipients": list(self.recipients),
        }

    @classmethod
    def from_json(cls, found: Json) -> Save:
        return cls(
            TinkerPath.parse(found["path"]),
            found["ttl_seconds"],
            found["overwrite"],
            found["user_metadata"],
            tuple(found["recipients"]),
        )


@dataclass(frozen=True, slots=True)
class SnapshotWeights:
    """Open a sampling session on the run's present weights."""

    name: ClassVar[str] = "snapshot"
    sampler_seq_id: int

    def to_json(self) -> dict[str, Any]:
        return {"sampler_seq_id": self.sampler_seq_id}

    @classmethod
    def from_json(cls, found: Json) -> SnapshotWeights:
        return cls(found["sampler_seq_id"])


@dataclass(frozen=True, slots=True)
class CloseRun:
    """Unload the run. The last command of a run."""

    name: ClassVar[str] = "close"

    def to_json(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_json(cls, _: Json) -> CloseRun:
        return cls()


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A journal record that this version cannot read: damaged, or written by a newer version. It always fails."""

    name: str
    values: Json = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dict(self.values)


Command = OpenRun | ForwardBackward | StepOptimizer | Save | SnapshotWeights | Load | CloseRun | UnknownCommand
CHANGES_STATE: Final = (OpenRun, ForwardBackward, StepOptimizer, Load)  # a replay must execute these again
_READERS: Final[Mapping[str, Callable[[Json], Command]]] = {
    each.name: each.from_json
    for each in (OpenRun, ForwardBackward, StepOptimizer, Save, SnapshotWeights, Load, CloseRun)
}


API_NAMES: Final[Mapping[str, str]] = {  # of commands, as clients call them
    OpenRun.name: "create_model",
    ForwardBackward.name: "forward_backward",
    StepOptimizer.name: "optim_step",
    Load.name: "load_weights",
    SnapshotWeights.name: "save_weights_for_sampler",
    CloseRun.name: "unload_model",
}
_SAVES: Final = {
    Kind.WEIGHTS: "save_weights",
    Kind.SAMPLER_WEIGHTS: "save_weights_for_sampler",
    Kind.EXTERNAL_WEIGHTS: "save_weights_external",
}


def api_name(command: Command) -> str:
    """The route by which a client asks for it."""
    return _SAVES[command.path.kind] if isinstance(command, Save) else API_NAMES.get(command.name, command.name)


def read_command(name: str, found: Json) -> Command:
    """The command of a journal record; an UnknownCommand if this version cannot read it."""
    try:
        return _READERS[name](found)
    except (KeyError, TypeError, ValueError, BadRequest):
        return UnknownCommand(name, found)
