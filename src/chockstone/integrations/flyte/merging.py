"""Merge saves: within an attempt a save adds to the saves before it, as with flytekit's own checkpoints.

A generation holds the files of its save, and lists the files that it inherits from earlier generations of the same
place, each with the seal of its archive. So no file is written twice, and each generation defines the whole state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, UnsupportedArchive
from chockstone.checkpoints.file_archive import FILES, extract_files
from chockstone.checkpoints.format.layout import MAX_MEMBERS, check_members
from chockstone.checkpoints.reading.archive import Archive, Head
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.places import AttemptPlace

INHERITED: Final = "inherited"
_SEAL: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class MergedPart:
    """One file of a state, and the archive that holds it."""

    name: str
    size: int
    generation: str
    seal: str


State = Mapping[str, MergedPart]


def state_of(head: Head, generation: str) -> dict[str, MergedPart]:
    """Return all files of a generation by name, its own and inherited ones. Validates everything it reads."""
    if head.manifest.kind != FILES:
        raise UnsupportedArchive(
            f"{generation} is a checkpoint of kind {head.manifest.kind!r} and not one of files: restore it with "
            "chockstone.checkpoints.Resume"
        )
    own = [MergedPart(member.name, member.size, generation, head.seal) for member in head.layout.members]
    parts = [*own, *_inherited(head.manifest.metadata.get(INHERITED, []), generation)]
    if why := check_members([(part.name, part.size) for part in parts]):
        raise DamagedArchive(f"{generation} names files that cannot stand together: {why}")
    return {part.name: part for part in parts}


def inherit(state: State, names: Iterable[str]) -> list[MergedPart]:
    """Return the files of the state before that a save of these names keeps."""
    new = set(names)
    if why := check_members([(name, 0) for name in new]):
        raise CheckpointError(f"these files cannot be saved as they are: {why}. Rename them, or pack them into fewer")
    kept = [part for part in state.values() if part.name not in new]
    if why := check_members([*((name, 0) for name in new), *((part.name, 0) for part in kept)]):
        raise CheckpointError(
            f"what is to be saved does not go with what this attempt saved before: {why}. Save under other names, or "
            "with replace=True"
        )
    return kept


def as_metadata(kept: Iterable[MergedPart]) -> dict[str, Any]:  # Any: plain JSON
    return {INHERITED: [asdict(part) for part in kept]}


def fetch(place: AttemptPlace, head: Head, generation: str, directory: Path) -> None:
    """Write the whole state into a private directory, and verify every byte.

    When it raises, the directory holds a part of the state: remove it.
    """
    by_archive: dict[tuple[str, str], list[MergedPart]] = {(generation, head.seal): []}
    for part in state_of(head, generation).values():
        by_archive.setdefault((part.generation, part.seal), []).append(part)
    for (name, seal), parts in by_archive.items():
        with Archive(place.open(name)) as archive:
            if archive.seal != seal:
                raise DamagedArchive(f"{name} of {place.uri} is another archive than the one that {generation} names")
            for part in parts:
                if part.name in archive.members and archive.members[part.name].size != part.size:
                    raise DamagedArchive(f"{part.name!r} in {name} of {place.uri} has not the size that was named")
            extract_files(archive, directory, [part.name for part in parts])


def _inherited(listed: object, generation: str) -> list[MergedPart]:
    what = f"what {generation} says that it inherits"
    if not isinstance(listed, list) or len(listed) > MAX_MEMBERS:
        raise DamagedArchive(f"{what} is no list of files")
    parts: list[MergedPart] = []
    for each in listed:
        values = each if isinstance(each, dict) else {}
        name, size, source, seal = (values.get(key) for key in ("name", "size", "generation", "seal"))
        sound = (
            isinstance(name, str)
            and isinstance(size, int)
            and not isinstance(size, bool)
            and isinstance(source, str)
            and Generation.parse(source) is not None
            and isinstance(seal, str)
            and _SEAL.fullmatch(seal) is not None
        )
        if not sound:
            raise DamagedArchive(f"{what} has an entry that is no file of a generation")
        parts.append(MergedPart(name, size, source, seal))  # type: ignore[arg-type]  # checked above
    return parts
