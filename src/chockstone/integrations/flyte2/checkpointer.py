"""The interface of ``flyte.Checkpoint`` on a chain of attempts.

A save is committed as an archive with digests beside the destination. Then it is copied to the destination in Flyte's
own format, so that a task can go back to Flyte's own checkpoint at any time. A load walks back over all attempts that
the path shows. None means that nothing was ever saved; a failure to read raises an error.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Literal

import flyte
from flyte._checkpoint import Checkpoint as NativeCheckpoint

from chockstone.checkpoints.errors import DamagedArchive, InvalidName, ResumeBlocked, ResumeError, StoreError
from chockstone.checkpoints.file_archive import extract_files, write_files
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.restoring.verdicts import judge
from chockstone.checkpoints.restoring.walk_back import OnUnreadable
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.flyte_native import fetch_flyte_native, refresh_flyte_native
from chockstone.checkpoints.resume.attempts.generations import FoundGeneration
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.attempts.roots import as_list
from chockstone.checkpoints.resume.forward import Forward, Mode
from chockstone.checkpoints.resume.retention_runner import RetentionRunner
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.resume.walk.report import ResumeReport
from chockstone.checkpoints.resume.walk.rules import ResumeRules
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.runtime.threads import in_thread
from chockstone.checkpoints.stores.posix import local_errors
from chockstone.integrations.flyte.layouts import Derivation, Unrecognised, recognise
from chockstone.integrations.flyte.staging import StagingDirectory
from chockstone.integrations.flyte2.errors import as_flyte_errors
from chockstone.integrations.flyte2.task_context import identity_of, is_restarted, place_of, rank_of, s3_access
from chockstone.integrations.flyte2.trees import PAYLOAD, TREE, packed, unpack

log = logging.getLogger(__name__)
_KEEP: Final = Retention(keep_last=2)


class Flyte2Checkpoint(NativeCheckpoint):
    """A ``flyte.Checkpoint`` that loads the newest good save of any attempt. Use one per attempt and process."""

    def __init__(
        self,
        checkpoint_dest: str | os.PathLike[str],
        checkpoint_src: str | os.PathLike[str] | None = None,
        *,
        identity: Mapping[str, str] | None = None,
        sources: str | Sequence[str] = (),
        flyte_native_view: bool = True,
        retention: Retention = _KEEP,
        forward: Mode = "reference",
        on_unreadable: OnUnreadable = "stop",
        legacy: Literal["accept", "reject"] = "accept",
        deadline_seconds: float = 120.0,
    ) -> None:
        """Sends no request.

        ``identity``: the chain of these checkpoints; None: the running task. ``sources``: places of other runs, tried
        last. ``flyte_native_view``: also write in Flyte's own format. ``retention``: saves of the chain to keep, at
        least two. ``forward``: how a loaded state is put into this attempt's place. ``on_unreadable``: "older" accepts
        an older verified state if the newest cannot be read now. ``legacy``: "reject" skips what Flyte's own
        checkpoint wrote. ``deadline_seconds``: maximum time to decide, without the transfer.
        """
        super().__init__(os.fspath(checkpoint_dest), None if checkpoint_src is None else os.fspath(checkpoint_src))
        self._td.cleanup()
        self._td = StagingDirectory()  # type: ignore[assignment]  # it has the members that flyte uses
        self._identity = identity_of(flyte.ctx()) if identity is None else dict(identity)
        self._sources = as_list(sources)
        self._flyte_native_view = flyte_native_view
        self._retention = retention
        self._forward_mode: Mode = forward
        self._rules = ResumeRules(
            on_unreadable=on_unreadable, legacy=legacy, flyte_native="object", deadline_seconds=deadline_seconds
        )
        self._rank = rank_of(os.environ)
        self._made: Chain | None = None
        self._block: ResumeBlocked | None = None  # the store could not be opened
        self._retention_runner: RetentionRunner | None = None
        self._lock = threading.RLock()

    # The interface of flyte.

    def prev_exists(self) -> bool:
        """Whether the platform named a place, or an earlier attempt saved something.

        If it named none, this may list the places, and raises as ``load`` does if they cannot be read.
        """
        if self._restored:
            return self._had_remote_prev
        if self._checkpoint_src is not None:
            return True
        if isinstance(self._layout(), Unrecognised) and not is_restarted(os.environ):
            return False
        with self._lock, as_flyte_errors():
            return self._chain().resolve().choice is not None

    async def load(self) -> Path | None:
        """Load the newest good save of any attempt; None if nothing was ever saved. Later calls return the same.

        A file or bytes are at ``path / "payload"``, a directory is restored to ``path``.
        """
        return await in_thread(self.load_sync)

    def load_sync(self) -> Path | None:
        """As ``load``, for code that is not async."""
        with self._lock, as_flyte_errors():
            if not self._restored:
                chain = self._chain()
                loaded = chain.walk(self._restore)
                self._had_remote_prev = loaded is not None
                self._is_tarball = loaded == self.path
                self._restored = True
                if (
                    loaded is not None and self._rank == 0 and self._identity
                ):  # without an identity there is no later attempt
                    Forward.begin(chain, self._forward_mode)
            return self._load_return_path(is_tarball=self._is_tarball)

    async def save(self, data: Path | str | bytes, *, step: int | None = None) -> None:
        """Save. Durable on return; the save before is kept if it raises. ``step`` is for the report."""
        await in_thread(lambda: self.save_sync(data, step=step))

    def save_sync(self, data: Path | str | bytes, *, step: int | None = None) -> None:
        if not isinstance(data, bytes):
            data = Path(data)
            if not data.exists():
                raise FileNotFoundError(f"Checkpoint source path does not exist: {data}")
        self._refuse_other_ranks()
        with self._lock, as_flyte_errors():
            chain = self._chain()
            generation = chain.begin()
            with packed(data) as (member, content):
                write_files(
                    chain.store,
                    generation.name,
                    {member: content},
                    step=step,
                    metadata=chain.metadata,
                    created_at=datetime.now(UTC),
                )
            if self._flyte_native_view:
                self._copy_for_flyte(chain, generation)
            self._retention_runner = self._retention_runner or RetentionRunner(chain, self._retention)
            self._retention_runner.tidy()

    # Additions to it.

    @property
    def report(self) -> ResumeReport | None:
        """The report of the last ``load``: candidates, verdicts and the choice."""
        return self._made.report if self._made else None

    def acknowledge_fresh_start(self) -> None:
        """Start from zero although something could not be read. After that error ``save`` raises until this call."""
        with self._lock, as_flyte_errors():
            self._block = None
            self._chain().acknowledge_fresh_start()

    def _chain(self) -> Chain:
        if self._block is not None:
            raise self._block
        if self._made is None:
            layout = self._layout()
            attempt, notes = None, []
            if isinstance(layout, Derivation):
                attempt = layout.attempt
            else:
                notes.append(f"older attempts are not derived: {layout.why}")
            try:
                self._made = Chain(
                    AttemptPlaces(access=s3_access()),
                    place_of(self._checkpoint_dest),
                    identity=self._identity,
                    attempt=attempt,
                    candidates=self._candidates(layout),
                    rules=self._rules,
                    notes=notes,
                    is_looking_only=self._rank > 0,
                )
            except InvalidName:
                raise
            except StoreError as error:  # most likely missing credentials
                self._block = ResumeBlocked(str(error), verdict=judge(error))
                raise self._block from error
        return self._made

    def _layout(self) -> Derivation | Unrecognised:
        return recognise(self._checkpoint_dest, self._checkpoint_src, os.environ)

    def _candidates(self, layout: Derivation | Unrecognised) -> list[Candidate]:
        found: list[Candidate] = []
        if self._checkpoint_src is not None:
            # The platform gives the first attempt of a recovered run a place of the run that it recovers.
            is_first = isinstance(layout, Derivation) and layout.attempt == layout.first
            may_be_foreign = is_first or not self._identity or os.environ.get("FLYTE_ATTEMPT_NUMBER") == "0"
            found.append(Candidate(place_of(self._checkpoint_src), Origin.PLATFORM, may_be_foreign=may_be_foreign))
        if isinstance(layout, Derivation):
            found += [Candidate(place_of(uri), Origin.DERIVED, attempt) for attempt, uri in layout.older()]
        return found + [Candidate(place_of(uri), Origin.USER, may_be_foreign=True) for uri in self._sources]

    def _refuse_other_ranks(self) -> None:
        if self._rank > 0:
            raise ResumeError(
                f"rank {self._rank} cannot save: the ranks of a task have one place, {self._checkpoint_dest!r}, and "
                "rank 0 holds it. Save there, under `if flyte.ctx().rank in (None, 0)`"
            )

    def _restore(self, found: FoundGeneration) -> Path | None:
        """Restore one candidate, through a private directory until it is complete."""
        with _staging() as staging:
            if found.generation is None:
                fetch_flyte_native(found.place, "object", found.flyte_native, staging)
                name = PAYLOAD
            else:
                with Archive(found.open()) as archive:
                    name = _only_member(archive)
                    extract_files(archive, staging)
            tree = staging / "unpacked"
            with local_errors(f"cannot make {str(tree)!r}"):
                tree.mkdir()
            is_tree = None if found.generation is None else name == TREE
            unpacked = unpack(staging / name, tree, is_tree=is_tree)
            if unpacked is None:
                return None
            with local_errors(f"cannot put a checkpoint at {str(self.path)!r}"):
                _replace_content(self.path, tree)
            return self.path if unpacked == tree else self._payload_path

    def _copy_for_flyte(self, chain: Chain, generation: Generation) -> None:
        """Copy the save in Flyte's own format. It is committed already, so a failure is only logged."""
        try:
            members = chain.head(chain.place, generation.name).layout.members
            refresh_flyte_native(chain.place, generation.name, members, form="object")
        except (StoreError, DamagedArchive, OSError) as error:
            log.warning(
                "checkpoint committed, copy for Flyte not refreshed place=%s generation=%s error=%s",
                chain.place.uri,
                generation.name,
                error,
            )


def _only_member(archive: Archive) -> str:
    names = list(archive.members)
    if names not in ([PAYLOAD], [TREE]):
        raise DamagedArchive(f"it should hold one object of Flyte 2, and holds {', '.join(names)[:200] or 'nothing'}")
    return names[0]


@contextmanager
def _staging() -> Iterator[Path]:
    with local_errors("cannot make a temporary directory"):
        staging = Path(mkdtemp(prefix="flyte-cp-"))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace_content(directory: Path, source: Path) -> None:
    for child in directory.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
    for child in source.iterdir():
        os.rename(child, directory / child.name)
