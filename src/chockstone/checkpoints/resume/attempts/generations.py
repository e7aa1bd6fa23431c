"""Generations found by a walk: opened so far as to know whose they are, references followed."""

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

CHAIN: Final = "chain"  # what an archive's metadata says of the chain it belongs to
FORWARD: Final = "forward"  # the kind of an archive that only names another


@dataclass(frozen=True, slots=True)
class FoundGeneration:
    """What is to be restored: an archive of ``place``, or the files that a stock writer left there."""

    place: AttemptPlace
    generation: Generation | None
    head: Head | None = None
    stock: tuple[FlyteNativeFile, ...] = ()

    @property
    def name(self) -> str:
        assert self.generation is not None, "stock files have no archive"
        return self.generation.name

    @property
    def manifest(self) -> Manifest:
        assert self.head is not None, "stock files have no manifest"
        return self.head.manifest

    @property
    def step(self) -> int | None:
        return self.head.manifest.step if self.head else None

    @property
    def seal(self) -> str | None:
        return self.head.seal if self.head else None

    def open(self) -> ArchiveSource:
        return self.place.open(self.name)


def find(places: AttemptPlaces, place: AttemptPlace, generation: Generation) -> FoundGeneration:
    """The generation by name, or the one it refers to. Reads heads only; raises what reading them raises."""
    return follow(places, place, generation, read_head_of(place, generation.name))


def follow(places: AttemptPlaces, place: AttemptPlace, generation: Generation, head: Head) -> FoundGeneration:
    """As ``find``, once its head is read: that tells whose it is, and so whether to go where it points."""
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
    elsewhere.cost = place.cost  # it is this one's to pay
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
