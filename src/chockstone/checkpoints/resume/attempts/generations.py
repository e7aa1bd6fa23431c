"""Find a generation to restore: read its head, and follow a reference to the archive that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.reading.archive import Head, read_head
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.flyte_native import FlyteNativeFile
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces
from chockstone.checkpoints.stores.store import ArchiveSource

CHAIN: Final = "chain"  # metadata key for the chain that an archive belongs to
FORWARD: Final = "forward"  # kind of an archive that is only a reference to another


@dataclass(frozen=True, slots=True)
class FoundGeneration:
    """What to restore: an archive of ``place``, or Flyte's native files there."""

    place: AttemptPlace
    generation: Generation | None
    head: Head | None = None
    flyte_native: tuple[FlyteNativeFile, ...] = ()

    @property
    def name(self) -> str:
        assert self.generation is not None, "native files have no archive"
        return self.generation.name

    @property
    def manifest(self) -> Manifest:
        assert self.head is not None, "native files have no manifest"
        return self.head.manifest

    @property
    def step(self) -> int | None:
        return self.head.manifest.step if self.head else None

    @property
    def seal(self) -> str | None:
        return self.head.seal if self.head else None

    def open(self) -> ArchiveSource:
        return self.place.open(self.name)


def find_generation(places: AttemptPlaces, place: AttemptPlace, generation: Generation) -> FoundGeneration:
    """Return the generation, or the one it refers to. Reads heads only, and raises the errors of reading."""
    return follow_reference(places, place, generation, read_head_of(place, generation.name))


def follow_reference(places: AttemptPlaces, place: AttemptPlace, generation: Generation, head: Head) -> FoundGeneration:
    """Do the rest of ``find_generation`` for a caller that has read the head to check the identity first."""
    if head.manifest.kind != FORWARD:
        return FoundGeneration(place, generation, head)
    source = head.manifest.metadata.get("source")
    uri, name, seal = (source.get(key) if isinstance(source, dict) else None for key in ("uri", "generation", "seal"))
    target = Generation.parse(name) if isinstance(name, str) else None
    if not isinstance(uri, str) or target is None:
        raise DamagedArchive(f"{generation.name} of {place.uri} forwards to nothing that can be named")
    try:
        elsewhere = places.open(uri)
    except ValueError as error:  # InvalidName is one
        raise DamagedArchive(f"{generation.name} of {place.uri} forwards to no place: {error}") from error
    elsewhere.cost = place.cost  # its requests count for the place with the reference
    try:
        behind = read_head_of(elsewhere, target.name)
    except CheckpointMissing as error:
        raise DamagedArchive(f"{generation.name} of {place.uri} forwards to {name} of {uri}, which is gone") from error
    if behind.seal != seal or behind.manifest.kind == FORWARD:
        raise DamagedArchive(f"{generation.name} of {place.uri} forwards to {name} of {uri}, which is another one now")
    return FoundGeneration(elsewhere, target, behind)


def identity_of(manifest: Manifest) -> Mapping[str, Any] | None:
    chain = manifest.metadata.get(CHAIN)
    identity = chain.get("identity") if isinstance(chain, dict) else None
    return identity if isinstance(identity, dict) else None


def read_head_of(place: AttemptPlace, name: str) -> Head:
    source = place.open(name)
    try:
        return read_head(source)
    finally:
        source.close()
