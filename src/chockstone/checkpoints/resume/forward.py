"""Forward the restored generation to the new attempt, as its first generation, so that the next attempt finds it there.

The mode "reference" writes an archive that only names the other; "copy" copies its bytes. Both are committed like a
save, under a number that no save uses, and change nothing that exists. A forward may fail: the restore has succeeded,
and the next attempt walks back as far as this one did.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import UTC, datetime
from typing import Final, Literal

from chockstone.checkpoints.errors import CheckpointError, CheckpointExists
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.attempts.claims import Generation, Referrer
from chockstone.checkpoints.resume.attempts.generations import FORWARD, FoundGeneration, identity_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, BucketPlace, FilePlace
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.stores.posix import ensure_directory, fsync_directory
from chockstone.checkpoints.stores.store import SUFFIX, ArchiveSource, Sink

log = logging.getLogger(__name__)
Mode = Literal["reference", "copy", "off"]
SECONDS: Final = 60.0  # maximum time to wait for a forward
_RUN_BYTES: Final = 8 * 1024**2


class Forward:
    """One forward, in a thread of its own."""

    def __init__(self, chain: Chain, found: FoundGeneration, mode: Mode) -> None:
        self._chain = chain
        self._found = found
        self._mode = mode
        self._held = found.place.uri, found.name
        chain.held.add(self._held)  # so that retention does not remove it before the reference exists
        self._thread = threading.Thread(target=self._run, name="chockstone-forward", daemon=True)

    @classmethod
    def begin(cls, chain: Chain, mode: Mode) -> Forward | None:
        """Start a forward if the restored generation was verified and is in another place."""
        found, report = chain.found, chain.report
        is_sound = report is not None and report.choice is not None and report.choice.verdict is Verdict.VERIFIED
        if mode == "off" or found is None or not is_sound or found.place.uri == chain.place.uri:
            return None
        forward = cls(chain, found, mode)
        forward._thread.start()
        return forward

    def wait(self, seconds: float = SECONDS) -> None:
        """Wait until the forward has ended, at most ``seconds``."""
        self._thread.join(seconds)

    def _run(self) -> None:
        found = self._found
        try:
            generation = self._chain.begin()
            if generation.number > 1:
                self._chain.note("not forwarded: the attempt has saved something of its own")
                return
            how = self._copy(generation) if self._mode == "copy" else self._refer(generation)
            self._chain.note(f"forwarded {found.name} of {found.place.uri} {how}")
        except CheckpointExists:
            self._chain.note("not forwarded: the attempt has saved something of its own")
        except Exception as error:  # noqa: BLE001  # best effort: the restore has succeeded
            log.warning("resume forward failed place=%s error=%s", self._chain.place.uri, error)
            self._chain.note(f"forwarding failed: {error}")
        finally:
            self._chain.held.discard(self._held)

    def _refer(self, generation: Generation) -> str:
        found = self._found
        if identity_of(found.manifest) != self._chain.identity:
            self._record_at_source()
        source = {"uri": found.place.uri, "generation": found.name, "seal": found.seal}
        write_files(
            self._chain.store,
            generation.name,
            {},
            kind=FORWARD,
            step=found.step,
            metadata={**self._chain.metadata, "source": source},
            created_at=datetime.now(UTC),
        )
        return "by reference"

    def _record_at_source(self) -> None:
        """Record the reference at the place of another chain, which has no fence of ours. It may be read-only."""
        referrer = Referrer(self._chain.place.uri)
        try:
            self._found.place.put_if_absent(referrer.record, referrer.encode())
        except CheckpointError as error:
            self._chain.note(f"the reference to {self._found.place.uri} could not be recorded there: {error}")

    def _copy(self, generation: Generation) -> str:
        found, chain = self._found, self._chain
        if found.manifest.metadata.get("inherited"):
            return self._refer(generation) + ": parts of it are in other generations"
        if identity_of(found.manifest) != chain.identity:
            return self._refer(generation) + ": a copy would say that it is of another chain"
        chain.claim().check()
        if copied := _copy_within_store(found.place, found.name, chain.place, generation.name):
            chain.claim().check()
            return copied
        source = found.open()
        sink = chain.store.begin(generation.name, source.size)
        try:
            _stream(source, sink)
            sink.commit(overwrite=False)
        finally:
            source.close()
            sink.abort()
        return "by copying its bytes"


def _copy_within_store(source: AttemptPlace, name: str, target: AttemptPlace, new: str) -> str:
    """Copy without moving bytes through this process. Return how, or "" if that is not possible."""
    if isinstance(source, BucketPlace) and isinstance(target, BucketPlace) and source.bucket is target.bucket:
        facts = source.bucket.find(f"{source.store.url[len(source.bucket.url) + 1 :]}/{name}{SUFFIX}")
        if facts is None:
            raise CheckpointError(f"{name} of {source.uri} is gone")
        key = f"{target.store.url[len(target.bucket.url) + 1 :]}/{new}{SUFFIX}"
        target.bucket.copy(facts, key, overwrite=False)
        return "by a copy that the store made"
    if isinstance(source, FilePlace) and isinstance(target, FilePlace):
        return _link(source, name, target, new)
    return ""


def _link(source: FilePlace, name: str, target: FilePlace, new: str) -> str:
    ensure_directory(target.folder)
    try:
        os.link(source.store.path(name), target.store.path(new))
    except FileExistsError:
        raise CheckpointExists(f"{new} of {target.uri} is there already") from None
    except OSError:
        return ""  # another file system, or one without hard links
    fsync_directory(target.folder)
    return "by a hard link"


def _stream(source: ArchiveSource, sink: Sink) -> None:
    buffer = bytearray(min(_RUN_BYTES, source.size))
    for start in range(0, source.size, _RUN_BYTES):
        piece = memoryview(buffer)[: min(_RUN_BYTES, source.size - start)]
        source.read_into(start, piece)
        sink.write_at(start, piece)
