"""Layouts: derive the checkpoint paths of older attempts of a Flyte task from the path of this attempt.

Flyte puts the attempt's number into the path, and in two of three layouts a hash of it, so replacing a digit is not
enough. A path is derived only if the same computation also gives this attempt's path, and the previous one from the
platform, byte for byte. Otherwise the result is ``Unrecognised``: no path is better than a wrong one. Does no I/O.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol
from urllib.parse import urlsplit

LEAF: Final = "_flytecheckpoints"
MAX_OLDER: Final = 1000  # candidates of one resolution

_SHARDS: Final = 36 * 36
_SHARD_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_RFC_4648: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_FLYTE_32: Final = b"abcdefghijklmnopqrstuvwxyz123456"
_TO_FLYTE_32: Final = bytes.maketrans(_RFC_4648, _FLYTE_32)
_UID_BYTES: Final = 50
_RAY_UID_BYTES: Final = 47  # the Ray plugin needs room for suffixes of its own
_RAY_NAMES: Final = ("RAY_CLUSTER_NAME", "RAY_ADDRESS", "RAY_JOB_ID", "RAY_IP")

_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_PLAIN_UID: Final = re.compile(rf"(?P<stem>.+)-(?P<attempt>{_NUMBER})")
_HASHED_UID: Final = re.compile(r"f[a-z1-6]{7}")
_ATTEMPT: Final = re.compile(_NUMBER)
_SHARD: Final = re.compile(r"[a-z0-9]{2}")
_NODE_IN_URL: Final = re.compile(rf"/nodeId/(?P<node>[^/?#]+?)(?:-{_NUMBER})?(?:[/?#]|$)")


def fnv1a32(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def shard(name: str) -> str:
    """Return the two characters that Flyte puts before ``name`` to distribute the keys of a bucket."""
    high, low = divmod(fnv1a32(name.encode()) % _SHARDS, len(_SHARD_ALPHABET))
    return _SHARD_ALPHABET[high] + _SHARD_ALPHABET[low]


def unique_id(joined: str, *, max_bytes: int = _UID_BYTES) -> str:
    """Return ``joined`` if it is short enough, else the eight characters of its hash, as Flyte does."""
    encoded = joined.encode()
    if len(encoded) <= max_bytes:
        return joined
    digest = base64.b32encode(fnv1a32(encoded).to_bytes(4, "big")).rstrip(b"=")
    return "f" + digest.translate(_TO_FLYTE_32).decode()


def node_id(environ: Mapping[str, str]) -> str | None:
    """Return the node without the attempt, from the URL of the execution, the only variable that has it."""
    found = _NODE_IN_URL.search(environ.get("FLYTE_EXECUTION_URL", ""))
    return found["node"] if found else None


def execution_name(environ: Mapping[str, str]) -> str | None:
    return environ.get("FLYTE_INTERNAL_EXECUTION_ID") or environ.get("_F_NM") or None


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """The paths of older attempts cannot be derived from this one's."""

    why: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """A recognised layout. Attempts count from ``first``, as in the path: 0 on Flyte 1, 1 on Flyte 2."""

    layout: str
    attempt: int
    first: int
    _models: tuple[Model, ...]

    def place(self, attempt: int) -> str | None:
        """Return the checkpoint path of ``attempt``, or None if it is ambiguous."""
        if not self.first <= attempt <= self.attempt:
            return None
        paths = {model.path(attempt) for model in self._models}
        return paths.pop() if len(paths) == 1 else None

    def older(self) -> Iterator[tuple[int, str]]:
        """Yield (attempt, place) of the earlier attempts, newest first."""
        for attempt in range(self.attempt - 1, max(self.first, self.attempt - MAX_OLDER) - 1, -1):
            if (place := self.place(attempt)) is not None:
                yield attempt, place


class Model(Protocol):
    """Computes the path of an attempt."""

    def path(self, attempt: int, /) -> str: ...


@dataclass(frozen=True, slots=True)
class _Flyte1:
    """``<raw>/<shard(uid)>/<uid>/_flytecheckpoints`` where uid is ``<execution>-<node>-<attempt>``."""

    raw: str
    stem: str
    max_bytes: int

    def path(self, attempt: int) -> str:
        uid = unique_id(f"{self.stem}-{attempt}", max_bytes=self.max_bytes)
        return f"{self.raw}/{shard(uid)}/{uid}/{LEAF}"


@dataclass(frozen=True, slots=True)
class _Flyte2:
    """``<base>/<attempt>/_flytecheckpoints``: the shard is far up in ``base`` and the same for all attempts."""

    base: str

    def path(self, attempt: int) -> str:
        return f"{self.base}/{attempt}/{LEAF}"


@dataclass(frozen=True, slots=True)
class _Flyte2Hosted:
    """``…/<run>/<action>/<n>/<shard(uid)>/<uid>/_flytecheckpoints`` where uid is ``<run>-<action>-<n-1>``."""

    base: str
    stem: str
    max_bytes: int

    def path(self, attempt: int) -> str:
        uid = unique_id(f"{self.stem}-{attempt - 1}", max_bytes=self.max_bytes)
        return f"{self.base}/{attempt}/{shard(uid)}/{uid}/{LEAF}"


def recognise(dest: str, prev: str | None, environ: Mapping[str, str]) -> Derivation | Unrecognised:
    """Return the layout that gives ``dest``, and ``prev`` if that belongs to this task.

    ``prev`` is not checked if it is missing, if it is ``dest`` itself (which some platform versions pass), and at the
    first attempt, where it is a place of another execution.
    """
    dest = dest.rstrip("/")
    prev = prev.rstrip("/") if prev else None
    head, _, leaf = dest.rpartition("/")
    parts = head.split("/")
    if leaf != LEAF or len(parts) < 3:
        return Unrecognised(f"it does not end in {LEAF!r} as the paths that Flyte makes for attempts do")
    if _ATTEMPT.fullmatch(parts[-1]):
        return _recognise_flyte2(dest, prev, environ)
    hosted = _recognise_hosted(dest, prev, environ)
    return hosted if hosted is not None else _recognise_flyte1(dest, prev, environ)


def _recognise_flyte1(dest: str, prev: str | None, environ: Mapping[str, str]) -> Derivation | Unrecognised:
    raw, found_shard, uid, _ = dest.rsplit("/", 3)
    if plain := _PLAIN_UID.fullmatch(uid):
        stem, attempt = plain["stem"], int(plain["attempt"])
    elif _HASHED_UID.fullmatch(uid):
        execution, node = execution_name(environ), node_id(environ)
        if execution is None or node is None:
            return Unrecognised(
                f"{uid!r} is a hash, and FLYTE_INTERNAL_EXECUTION_ID or the node in FLYTE_EXECUTION_URL is not set"
            )
        stem = f"{execution}-{node}"
        searched = _search(uid, stem, environ)
        if searched is None:
            return Unrecognised(f"{uid!r} is not the hash of an attempt of {stem!r}")
        attempt = searched
    else:
        return Unrecognised(f"{uid!r} is neither <execution>-<node>-<attempt> nor a hash of it")
    if found_shard != shard(uid):
        return Unrecognised(f"the shard of {uid!r} is {shard(uid)!r}, and the path has {found_shard!r}")
    models = [_Flyte1(raw, stem, limit) for limit in _limits(environ, len(f"{stem}-{attempt}".encode()))]
    return _checked("flyte 1", models, dest, prev, attempt=attempt, first=0)


def _recognise_hosted(dest: str, prev: str | None, environ: Mapping[str, str]) -> Derivation | None:
    parts = dest.rsplit("/", 6)
    if len(parts) < 7 or not _ATTEMPT.fullmatch(parts[3]) or int(parts[3]) < 1:
        return None
    before, run, action, number = parts[:4]
    attempt, stem = int(number), f"{run}-{action}"
    limits = _limits(environ, len(f"{stem}-{attempt - 1}".encode()))
    models = [_Flyte2Hosted(f"{before}/{run}/{action}", stem, limit) for limit in limits]
    derivation = _checked("flyte 2 hosted", models, dest, prev, attempt=attempt, first=1)
    return derivation if isinstance(derivation, Derivation) else None


def _recognise_flyte2(dest: str, prev: str | None, environ: Mapping[str, str]) -> Derivation | Unrecognised:
    base, number, _ = dest.rsplit("/", 2)
    attempt = int(number)
    if attempt < 1:
        return Unrecognised("attempts of Flyte 2 count from 1, and the path has 0")
    derivation = _checked("flyte 2", [_Flyte2(base)], dest, prev, attempt=attempt, first=1)
    if isinstance(derivation, Unrecognised) or attempt == 1:
        return derivation
    # No part of the path is computed from the number, so something else must confirm the layout.
    if (prev and prev != dest) or _is_named(base, attempt, environ) or _is_sharded(base, environ):
        return derivation
    return Unrecognised(
        "its parts agree with Flyte 2, but neither a previous path, nor ACTION_NAME and FLYTE_ATTEMPT_NUMBER, "
        "nor the shard of the run's name confirms it"
    )


def _checked(
    layout: str, models: Sequence[Model], dest: str, prev: str | None, *, attempt: int, first: int
) -> Derivation | Unrecognised:
    """Keep the models that give ``dest`` and ``prev`` byte for byte."""
    making_dest = [model for model in models if model.path(attempt) == dest]
    if not making_dest:
        return Unrecognised(f"the path of attempt {attempt} computed for {layout} is another one")
    if not prev or prev == dest or attempt == first:
        return Derivation(layout, attempt, first, tuple(making_dest))
    before = range(attempt - 1, max(first, attempt - MAX_OLDER) - 1, -1)
    making_both = [model for model in making_dest if any(model.path(number) == prev for number in before)]
    if not making_both:
        return Unrecognised(f"the path is one of {layout}, but the previous one that the platform gave is not")
    return Derivation(layout, attempt, first, tuple(making_both))


def _limits(environ: Mapping[str, str], length: int) -> list[int]:
    """Return the possible maximum lengths of a plain uid, given that one of ``length`` bytes is in use.

    The limit is 50, or 47 if the Ray plugin runs the task. A hash does not show which. Then both are possible if Ray's
    variables are set, until a path decides.
    """
    has_ray = any(environ.get(name) for name in _RAY_NAMES)
    return [_UID_BYTES, _RAY_UID_BYTES] if has_ray or length <= _UID_BYTES else [_UID_BYTES]


def _search(uid: str, stem: str, environ: Mapping[str, str]) -> int | None:
    """Return the attempt whose hash is ``uid``, by trying all plausible numbers."""
    number = environ.get("FLYTE_ATTEMPT_NUMBER", "")
    first_guess = [int(number)] if _ATTEMPT.fullmatch(number) else []
    for attempt in chain(first_guess, range(MAX_OLDER)):
        if unique_id(f"{stem}-{attempt}", max_bytes=0) == uid:
            return attempt
    return None


def _is_named(base: str, attempt: int, environ: Mapping[str, str]) -> bool:
    action = environ.get("ACTION_NAME")
    return base.rpartition("/")[2] == action and environ.get("FLYTE_ATTEMPT_NUMBER") == str(attempt - 1)


def _is_sharded(base: str, environ: Mapping[str, str]) -> bool:
    """Whether the first part after the bucket is the shard of ``<namespace>/<run>-<action>``."""
    parts = urlsplit(base).path.strip("/").split("/")
    if "://" not in base or len(parts) < 3 or not _SHARD.fullmatch(parts[0]):
        return False
    run, action = parts[-2:]
    name = f"{run}-a0" if action == run else f"{run}-{action}"
    project = environ.get("FLYTE_INTERNAL_EXECUTION_PROJECT", "")
    domain = environ.get("FLYTE_INTERNAL_EXECUTION_DOMAIN", "")
    namespaces = [f"{project}-{domain}", "flyte", environ.get("POD_NAMESPACE", "")]
    return any(parts[0] == shard(f"{namespace}/{name}") for namespace in namespaces if namespace)
