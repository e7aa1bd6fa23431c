"""The claim on a store: a store outside the data directory belongs to one server, and both record that.

A server deletes archives of ended sessions and runs from its store, also those that it does not know. Two servers on
one store would delete each other's archives, and a server that is started on another store would miss its own. So the
store has ``server.json``, which names the server, and the data directory has ``store.json``, which names the store. A
copy of a store includes the claim.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone.checkpoints import Store
from chockstone.checkpoints.errors import CheckpointExists
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.posix import ensure_directory, explained, put_file
from chockstone.checkpoints.stores.store import PartialWrite
from chockstone.engine.ownership.data_directory import ARCHIVES, STORE_RECORD

CLAIM: Final = "server.json"  # in the store
_MAX_BYTES: Final = 64 * 1024


class StoreRefused(Exception):
    """The store is not this server's; the message says what to do."""


@dataclass(frozen=True, slots=True)
class _Claim:
    server: str  # a name that no other has
    host: str
    data: str


@dataclass(frozen=True, slots=True)
class _Record:
    server: str
    store: str
    is_claimed: bool  # else a first start was cut short, and the store may not know yet


def store_of(data: Path) -> str:
    """Where the archives of this data directory are, as a URL or a path. Raises StoreRefused."""
    record = _read_record(data)
    return str(data / ARCHIVES) if record is None or not record.is_claimed else record.store


def claim_store(data: Path, store: Store) -> None:
    """Make sure that the store is this server's. Claim it if it has no claim and the server has no store.

    Also proves that the store can be reached with the rights that it takes. Raises StoreRefused, StoreError, OSError.
    """
    record = _read_record(data)
    if _is_within(data, store):
        if record is not None and record.is_claimed:
            raise StoreRefused(
                f"the checkpoints of this server are in {record.store}: start it with --store {record.store}. To go on "
                f"without them, or after copying them to {str(data / ARCHIVES)!r}, remove {str(data / STORE_RECORD)!r}"
            )
        return
    found = _read_claim(store)
    if record is None or not record.is_claimed:
        _claim(data, store, found, server=secrets.token_hex(16) if record is None else record.server)
        return
    if found is None:
        raise StoreRefused(
            f"{store.url} has no {CLAIM}, so it is not where the checkpoints of this server are, which is "
            f"{record.store}: is the URL right, is the disk mounted? To move them, copy all that is there, {CLAIM} "
            f"included. To continue without them, remove {str(data / STORE_RECORD)!r}"
        )
    if found.server != record.server:
        raise _others(store, found)
    if record.store != store.url:
        _write_record(data, _Record(record.server, store.url, is_claimed=True))


def adopt_store(data: Path, store: Store) -> None:
    """Make the store this data directory's. For a server whose own directory was lost: whoever had the store before
    is refused there from its next start on."""
    if _is_within(data, store) or (found := _read_claim(store)) is None:
        return
    record = _read_record(data)
    if record is None or record.server != found.server:
        _take(data, store, secrets.token_hex(16), may_replace=True)


def sweep_unfinished(store: Store) -> list[PartialWrite]:
    """Discard unfinished uploads. Call it for a store that is ours, while nothing of ours writes."""
    if not isinstance(store, ObjectStore):
        return []  # locks tell what is being written, and a sweep may come at any time
    return ObjectStore.from_url(store.url, grace_seconds=0.0).sweep()


def _claim(data: Path, store: Store, found: _Claim | None, *, server: str) -> None:
    if found is None:
        _check_moved(data, store)
        _take(data, store, server, may_replace=False)
    elif found.server != server:
        raise _others(store, found)
    else:
        _write_record(data, _Record(server, store.url, is_claimed=True))


def _take(data: Path, store: Store, server: str, *, may_replace: bool) -> None:
    """The data directory first: a claim that no data directory knows would keep every server out."""
    _write_record(data, _Record(server, store.url, is_claimed=False))
    _write_claim(store, _Claim(server, socket.gethostname(), str(data.absolute())), may_replace=may_replace)
    _write_record(data, _Record(server, store.url, is_claimed=True))


def _others(store: Store, found: _Claim) -> StoreRefused:
    return StoreRefused(
        f"{store.url} belongs to another server, with the data directory {found.data!r} on {found.host!r}; choose "
        "another directory or prefix with --store. If that server is lost and this one takes its place, "
        f"`chockstone doctor --rebuild --store {store.url}` lists its checkpoints here"
    )


def _is_within(data: Path, store: Store) -> bool:
    """Whether it goes and comes with the data directory, whose lock is enough."""
    return isinstance(store, FileStore) and store.root.resolve() == (data / ARCHIVES).resolve()


def _check_moved(data: Path, store: Store) -> None:
    """What the server had in its data directory must be in the store by now."""
    before = {entry.name: entry.size for entry in FileStore(data / ARCHIVES).entries()}
    if not before:
        return
    there = {entry.name: entry.size for entry in store.entries()}
    missing = [name for name, size in before.items() if there.get(name) != size]
    if missing:
        raise StoreRefused(
            f"{len(missing)} of the {len(before)} archives that this server has in {str(data / ARCHIVES)!r} are not in "
            f"{store.url}, such as {missing[0]!r}: copy that directory there first, as with `aws s3 sync`, or start "
            "without --store"
        )


def _read_record(data: Path) -> _Record | None:
    try:
        content = (data / STORE_RECORD).read_bytes()
    except FileNotFoundError:
        return None
    document = _parsed(content)
    server, store = document.get("server"), document.get("store")
    if not isinstance(server, str) or not isinstance(store, str):
        raise StoreRefused(
            f"{str(data / STORE_RECORD)!r} does not say which store is this server's; remove it, or mend it"
        )
    return _Record(server, store, is_claimed=document.get("is_claimed") is not False)


def _write_record(data: Path, record: _Record) -> None:
    put_file(data / STORE_RECORD, _rendered(record), may_replace=True)


def _read_claim(store: Store) -> _Claim | None:
    if isinstance(store, ObjectStore):
        content = store.read_note(CLAIM, limit=_MAX_BYTES)
    else:
        with explained(f"cannot read {_path(store)}"):
            try:
                content = _path(store).read_bytes()
            except FileNotFoundError:
                content = None
    if content is None:
        return None
    document = _parsed(content)
    return _Claim(*(str(document.get(name, "unknown")) for name in ("server", "host", "data")))


def _write_claim(store: Store, claim: _Claim, *, may_replace: bool) -> None:
    taken = StoreRefused(f"another server claimed {store.url} at this moment; choose another with --store")
    if isinstance(store, ObjectStore):
        try:
            store.write_note(CLAIM, _rendered(claim), overwrite=may_replace)
        except CheckpointExists:
            raise taken from None
        return
    with explained(f"cannot write {_path(store)}"):
        ensure_directory(_path(store).parent)
        try:
            put_file(_path(store), _rendered(claim), may_replace=may_replace)
        except FileExistsError:
            raise taken from None


def _path(store: Store) -> Path:
    assert isinstance(store, FileStore), "stores are directories or in buckets"
    return store.root / CLAIM


def _rendered(document: _Claim | _Record) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def _parsed(content: bytes) -> dict[str, Any]:  # Any: plain JSON
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
