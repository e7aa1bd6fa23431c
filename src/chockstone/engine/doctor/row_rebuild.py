"""Rebuilds catalog rows from the metadata of archives.

A server writes path, owner, base model and specification into every archive. What changes after a save is not in the
archive: a copy has the metadata of its source, and only its place in the store tells its run. Expiry, publication,
projects, the name after an undelete and the content of the trash are known to the catalog alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from chockstone.backends.protocol import RunSpec
from chockstone.catalog import Catalog, CheckpointRow, RowExists, RowMissing, RunRow
from chockstone.checkpoints import StoredCheckpoint
from chockstone.engine.storage.archive_names import HASHED, run_of_stored, stored_name
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import Kind, TinkerPath

_RUN_ID: Final = re.compile(r"(?P<session>.+):train:(?P<number>\d{1,18})")
_SDK_VERSION: Final = "unknown"


class Undescribed(Exception):
    """An archive that does not say which checkpoint it is; the message says why."""


@dataclass(frozen=True, slots=True)
class Description:
    """The checkpoint that an archive says it is."""

    archive: str
    path: TinkerPath
    owner: str
    base_model: str
    spec: Mapping[str, Any]  # Any: plain JSON
    optimizer_config: Mapping[str, Any]  # Any: plain JSON
    user_metadata: Mapping[str, str]
    created_at: datetime
    step: int | None
    size_bytes: int
    seal: str | None = None
    doubt: str = ""  # what of this the archive could not say for certain

    @property
    def order(self) -> tuple[datetime, str]:
        """Newest last."""
        return self.created_at, self.archive


def describe(found: StoredCheckpoint) -> Description:
    """Read what an archive of a survey says of itself; its place in the store wins. Raises Undescribed."""
    if found.manifest is None:
        raise Undescribed(found.damage or "its manifest cannot be read")
    metadata = found.manifest.metadata
    try:
        first = TinkerPath.parse(_text(metadata, "path"))
        spec = RunSpec.from_json(_object(metadata, "spec")).to_json()
        path, doubt = _placed(found.name, first)
        return Description(
            archive=found.name,
            path=path,
            owner=_text(metadata, "owner"),
            base_model=_text(metadata, "base_model"),
            spec=spec,
            optimizer_config=_object(metadata, "optimizer_config"),
            user_metadata={key: str(value) for key, value in _object(metadata, "user_metadata").items()},
            created_at=found.manifest.created_at,
            step=found.manifest.step,
            size_bytes=found.size,
            seal=found.seal,
            doubt=doubt,
        )
    except BadRequest as error:
        raise Undescribed(str(error)) from error


def newest(descriptions: Iterable[Description]) -> dict[TinkerPath, Description]:
    """One for each path: a save that replaces another is written beside it, and is the later one."""
    return {each.path: each for each in sorted(descriptions, key=lambda each: each.order)}


async def adopt(
    catalog: Catalog,
    described: Description,
    *,
    now: datetime,
    damage: str | None = None,
    journals: Sequence[Path] = (),
) -> CheckpointRow:
    """List the checkpoint in the catalog, private and without an expiry; again is once.

    Its run and session are made, too, where they are not known: as ended ones, unless they have
    ``journals`` to go on with. Raises CheckpointExists.
    """
    run = await _run_of(catalog, described, now, journals)
    return await catalog.checkpoint_saves.register(
        run_id=run.run_id,
        kind=described.path.kind.value,
        name=described.path.name,
        owner=run.owner,
        archive=described.archive,
        base_model=described.base_model,
        spec=described.spec,
        created_at=described.created_at,
        size_bytes=described.size_bytes,
        optimizer_config=described.optimizer_config,
        user_metadata=described.user_metadata,
        expires_at=None,
        public=False,
        step=described.step,
        state="ready" if damage is None else "damaged",
        damage=damage,
        seal=described.seal,
    )


async def _run_of(catalog: Catalog, described: Description, now: datetime, journals: Sequence[Path]) -> RunRow:
    """The run's row. One that is there already knows better whose it is."""
    living = {run_of_stored(journal.name) for journal in journals}
    run_id = described.path.run_id
    with suppress(RowMissing):
        return await catalog.runs.get(run_id)
    match = _RUN_ID.fullmatch(run_id)
    assert match is not None, f"describe() let run id {run_id!r} pass"
    session_id = match["session"]
    await catalog.users.ensure(described.owner, now=now)
    with suppress(RowExists):
        await catalog.sessions.create(
            session_id, owner=described.owner, sdk_version=_SDK_VERSION, now=described.created_at
        )
        if not any(each is not None and each.startswith(f"{session_id}:train:") for each in living):
            detail = "made again from its checkpoints"
            await catalog.sessions.finish(session_id, reason="interrupted", detail=detail, now=now)
    return await catalog.runs.create(
        session_id,
        int(match["number"]),
        owner=described.owner,
        base_model=described.base_model,
        spec=described.spec,
        optimizer_config=described.optimizer_config,
        now=described.created_at,
        state="parked" if run_id in living else "unloaded",
    )


def _placed(archive: str, first: TinkerPath) -> tuple[TinkerPath, str]:
    """The path by the archive's own name in the store, and what remains in doubt."""
    parts = archive.split("/")
    if len(parts) != 3 or not (stored := parts[2].rpartition(".")[0]):
        raise Undescribed("its name in the store is not one that a server gives")
    run_id = _run_id(parts[0], first.run_id)
    kind = Kind.parse(parts[1])
    name = first.name if stored == stored_name(first.name) or stored.startswith(HASHED) else stored
    doubts = []
    if run_id != first.run_id:
        doubts.append(f"a copy of {first}, listed as that one's owner's unless its run is known")
    if stored != stored_name(name):
        doubts.append("its own name cannot be read from the store, so it has that of its source")
    return TinkerPath.of(run_id, kind, name), "; ".join(doubts)


def _run_id(stored: str, first: str) -> str:
    """Run ids have colons, which a store's names do not."""
    if stored == first.replace(":", ".") and _RUN_ID.fullmatch(first):
        return first
    if (run_id := run_of_stored(stored)) is None:
        raise Undescribed(f"{stored!r} is not the name of a run")
    return run_id


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or not value:
        raise Undescribed(f"its metadata has no {key!r}: it was not saved through a server")
    return value


def _object(metadata: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = metadata.get(key)
    if not isinstance(value, dict):
        raise Undescribed(f"its metadata has no {key!r}: it was not saved through a server")
    return value
