"""flytekit's checkpoint interface on a chain of attempts.

A save is committed as an archive beside the destination. Then its files are copied to the destination itself, where
flytekit's own checkpoint reads them. A restore gives the complete, verified state of the newest attempt that has one.
A failure to read raises an error; it is never treated as "no checkpoint".
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from flytekit.core.checkpointer import SyncCheckpoint
from flytekit.core.context_manager import FlyteContextManager

from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, DamagedArchive, ForeignArchive
from chockstone.checkpoints.file_archive import FILES, list_files, write_files
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import OnUnreadable
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.flyte_native import fetch_flyte_native, refresh_flyte_native
from chockstone.checkpoints.resume.attempts.generations import FoundGeneration, identity_of, read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces, normalise
from chockstone.checkpoints.resume.attempts.roots import named_places
from chockstone.checkpoints.resume.forward import Forward, Mode
from chockstone.checkpoints.resume.retention_runner import RetentionRunner
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.resume.walk.report import ResumeReport
from chockstone.checkpoints.resume.walk.rules import ResumeRules
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores.bucket import S3Access
from chockstone.checkpoints.stores.posix import local_errors
from chockstone.integrations.flyte.errors import FreshStart, Translator
from chockstone.integrations.flyte.identity import read_attempt
from chockstone.integrations.flyte.merging import MergedPart, as_metadata, fetch, inherit, state_of
from chockstone.integrations.flyte.staging import StagingDirectory, move_into, staging

log = logging.getLogger(__name__)
_FORM: Final = "tree"  # files below the destination
_FORWARD_SECONDS: Final = 10.0  # without the forward, the next attempt walks back as far as this one did


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of ``resumable``, ``checkpoint`` and ``FlyteCheckpoint``; the last six are those of ``Resume``."""

    sources: str | Sequence[str] = ()  # places of other runs, tried last
    flyte_native_view: bool = True  # also write the files where flytekit's own checkpoint reads them
    accept_flyte_native: bool = True  # also restore files of flytekit's own checkpoint, which cannot be verified
    on_unreadable: OnUnreadable = "stop"
    forward: Mode = "reference"
    retention: Retention = Retention(keep_last=2)  # noqa: RUF009  # frozen
    poison_after: int | None = None
    deadline_seconds: float = 120.0
    fresh_start: bool = False  # start from zero, whatever exists


class FlyteCheckpoint(SyncCheckpoint):  # type: ignore[misc]  # flytekit has no types
    """Replaces flytekit's ``SyncCheckpoint``. Thread-safe. Keep the object while the restored files are in use.

    Use one per attempt and process: a second one takes over the place, and saves of the first raise ``Superseded``.
    Of several ranks only rank 0 saves; the others restore what it finds, before its first save.
    """

    def __init__(
        self,
        checkpoint_dest: str | os.PathLike[str],
        checkpoint_src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        *,
        options: Options = Options(),  # noqa: B008  # frozen
    ) -> None:
        """Does no I/O: flytekit makes a checkpoint for every task, used or not.

        ``checkpoint_src``: the place of the previous attempt, or several, the most recent first. Places that are
        derived from the paths come between the first and the others.
        """
        given = [checkpoint_src] if isinstance(checkpoint_src, str | os.PathLike) else list(checkpoint_src or ())
        paths = [path for path in (os.fspath(each) for each in given) if path]
        # The attributes that flytekit's constructor sets, without its directory. Plugins read them.
        self._checkpoint_dest: str = os.fspath(checkpoint_dest)
        self._checkpoint_src: str | None = paths[0] if paths else None
        self._prev_download_path: Path | None = None
        self._td = StagingDirectory()
        self._older = paths[1:]
        self._options = options
        self._lock = threading.RLock()
        self._chain_made: Chain | None = None
        self._state: dict[str, MergedPart] | None = None  # what this attempt has saved so far; None: not read yet
        self._last: str | None = None  # the generation committed last
        self._translator = Translator()
        self._forward: Forward | None = None
        self._retention_runner: RetentionRunner | None = None

    def __del__(self) -> None:
        directory = getattr(self, "_td", None)  # missing if the constructor failed
        if directory is not None:
            directory.cleanup()

    # -- the interface of flytekit

    def prev_exists(self) -> bool:
        """Whether there is something to restore. Raises if that is unknown; it never returns False then."""
        with self._lock, self._translator.translated():
            if self._prev_download_path is not None:
                return True
            return self._chain().resolve().choice is not None

    def restore(self, path: Path | str | None = None) -> Path | None:
        """Restore the newest good checkpoint into a directory and return it. Later calls return the same directory.

        Returns None if the platform named no previous attempt and there is none. Raises FreshStart (a
        FlyteDataNotFoundException) if it named one and nothing was ever committed. When this raises, ``path`` is
        unchanged, unless the disk failed while complete files were moved there.
        """
        with self._lock, self._translator.translated():
            if self._prev_download_path is None:
                self._prev_download_path = self._restore(path)
            return self._prev_download_path

    def save(
        self, cp: Path | str | os.PathLike[str] | io.IOBase | bytes, *, step: int | None = None, replace: bool = False
    ) -> None:
        """Save a file, a folder, a reader's content or bytes. Durable on return; a kill keeps the save before.

        Adds to the files that this attempt saved before, or with ``replace`` replaces them. ``step`` is for the report.
        """
        with self._lock, self._translator.translated():
            if isinstance(cp, str | os.PathLike):
                self._commit(_files(Path(cp)), step, replace=replace)
            elif isinstance(cp, bytes | bytearray | memoryview):
                self._commit({self.TMP_DST_PATH: bytes(cp)}, step, replace=replace)
            elif isinstance(cp, io.IOBase):
                copy = Path(self._td.name) / self.TMP_DST_PATH
                try:
                    with (
                        local_errors(f"cannot copy what is to be saved to {str(copy)!r}"),
                        copy.open("wb") as file,
                    ):
                        shutil.copyfileobj(cp, file, 8 * 1024**2)
                    self._commit({self.TMP_DST_PATH: copy}, step, replace=replace)
                finally:
                    copy.unlink(missing_ok=True)
            else:
                raise ValueError(f"a path, a reader or bytes can be saved, and not {type(cp)}")

    def write(self, b: bytes, *, step: int | None = None) -> None:
        """Save these bytes under one fixed name; ``read`` in the next attempt returns them."""
        self.save(io.BytesIO(b).getvalue(), step=step)  # BytesIO refuses other types as flytekit does

    # -- additions to it

    @property
    def report(self) -> ResumeReport | None:
        """The report of the decision; None before it."""
        return self._chain_made.report if self._chain_made else None

    def configure(self, options: Options) -> None:
        """Replace the options, before the first use."""
        with self._lock:
            if self._chain_made is not None and options != self._options:
                raise CheckpointError("the checkpoint of this task is in use already; give its options in one place")
            self._options = options

    def acknowledge_fresh_start(self) -> None:
        """Start from zero although something could not be read. After such an error, saves raise until this call."""
        with self._lock, self._translator.translated():
            self._chain().acknowledge_fresh_start()
            self._state, self._last = {}, None

    def close(self) -> None:
        """Wait for work in the background."""
        if self._forward is not None:
            self._forward.wait(_FORWARD_SECONDS)

    # -- restoring

    def _restore(self, path: Path | str | None) -> Path | None:
        target = Path(self._td.name) / self.SRC_LOCAL_FOLDER if path is None else Path(path)
        if path is None:
            with local_errors(f"cannot make {str(target)!r}"):
                target.mkdir(exist_ok=True)
        chain = self._chain()
        if not target.is_dir() and (self._checkpoint_src is not None or chain.resolve().choice is not None):
            raise ValueError(f"Checkpoints can be restored to a directory only, and {str(target)!r} is none.")
        if chain.walk(lambda found: self._load(found, target)) is not None:
            self._forward = Forward.begin(chain, self._options.forward) if self._is_leading() else None
            return target
        if self._checkpoint_src is None:
            return None
        if _is_empty(chain.report, self._checkpoint_src):
            return target  # as flytekit does for an empty directory
        raise FreshStart(self._checkpoint_src, chain.report)

    def _load(self, found: FoundGeneration, target: Path) -> Path:
        with staging(target, Path(self._td.name)) as staged:
            if found.generation is None:
                fetch_flyte_native(found.place, _FORM, found.flyte_native, staged)
            else:
                assert found.head is not None
                fetch(found.place, found.head, found.name, staged)
            move_into(staged, target)
        return target

    # -- saving

    def _commit(self, files: Mapping[str, Path | bytes], step: int | None, *, replace: bool) -> None:
        if not self._is_leading():
            raise CheckpointError(
                f"rank {os.environ.get('RANK')} cannot save: of several ranks only rank 0 does. Gather the state "
                "there, or save each rank's part with chockstone.checkpoints.Resume"
            )
        chain = self._chain()
        generation = chain.begin()
        if not files:
            log.warning("checkpoint not saved dest=%s reason=%s", self._checkpoint_dest, "the folder holds no files")
            return
        kept = [] if replace else inherit(self._saved_so_far(chain), files)
        metadata = {**chain.metadata, **as_metadata(kept)}
        self._retention_runner = self._retention_runner or RetentionRunner(chain, self._options.retention)
        store = chain.store_with(self._retention_runner.tidy)
        saved = write_files(store, generation.name, files, step=step, metadata=metadata, created_at=datetime.now(UTC))
        self._last, self._state = generation.name, None
        facts = (self._checkpoint_dest, generation.name, step, saved.size_bytes)
        log.info("checkpoint saved dest=%s generation=%s step=%s bytes=%d", *facts)
        if self._options.flyte_native_view:
            self._refresh(chain, generation.name, replace=replace)

    def _refresh(self, chain: Chain, name: str, *, replace: bool) -> None:
        """Copy the files for flytekit's own checkpoint. They are saved already, so a failure is only reported."""
        try:
            head = chain.head(chain.place, name)
            self._state = state_of(head, name)
            refresh_flyte_native(chain.place, name, head.layout.members, form=_FORM, replace=replace)
        except Exception as error:  # noqa: BLE001  # it must not look like a failed save
            log.warning(
                "copies for flytekit not refreshed dest=%s generation=%s error=%s", self._checkpoint_dest, name, error
            )
            chain.note(f"{name} was not copied for flytekit's own checkpoint: {error}")

    def _saved_so_far(self, chain: Chain) -> dict[str, MergedPart]:
        if self._state is None and self._last is not None:
            self._state = state_of(read_head_of(chain.place, self._last), self._last)
        elif self._state is None:
            self._state = self._saved_before(chain)
        return self._state

    def _saved_before(self, chain: Chain) -> dict[str, MergedPart]:
        """Return what an earlier process of this attempt saved: a save adds to that, too."""
        attempt = chain.claim().attempt
        superseded = attempt.superseded()
        for generation in attempt.generations:
            with suppress(CheckpointMissing, DamagedArchive, ForeignArchive):  # a restore skips it, too
                head = read_head_of(attempt.place, generation.name)
                is_ours = identity_of(head.manifest) == chain.identity
                if generation not in superseded and head.manifest.kind == FILES and is_ours:
                    return state_of(head, generation.name)
        return {}

    # -- the chain

    def _chain(self) -> Chain:
        if self._chain_made is None:
            options, dest = self._options, self._checkpoint_dest
            facts = read_attempt(dest, self._checkpoint_src, os.environ)
            places = AttemptPlaces(access=_access())
            older = [Candidate(uri, Origin.USER, may_be_foreign=True) for uri in self._older]
            self._chain_made = Chain(
                places,
                dest,
                identity=facts.identity,
                attempt=facts.attempt,
                candidates=[*facts.candidates, *older, *named_places(places, options.sources)],
                rules=ResumeRules(
                    on_unreadable=options.on_unreadable,
                    legacy="accept" if options.accept_flyte_native else "reject",
                    flyte_native=_FORM,
                    poison_after=options.poison_after,
                    deadline_seconds=options.deadline_seconds,
                    fresh_start=options.fresh_start,
                ),
                notes=facts.notes,
                is_looking_only=not self._is_leading(),
            )
        return self._chain_made

    def _is_leading(self) -> bool:
        """Whether this process may write: the only one of the attempt, or rank 0."""
        return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def _files(path: Path) -> dict[str, Path]:
    if path.is_dir():
        return list_files(path)
    return {path.name: Path(os.path.realpath(path))}


def _is_empty(report: ResumeReport | None, src: str) -> bool:
    looked = report.looked if report else ()
    return any(each.verdict is Verdict.EMPTY and each.uri == normalise(src) for each in looked)


def _access() -> S3Access | None:
    """Return endpoint and keys of flytekit's settings (FLYTE_AWS_ENDPOINT and others); None: the AWS environment's."""
    settings = FlyteContextManager.current_context().file_access.data_config.s3
    has_keys = bool(settings.access_key_id and settings.secret_access_key)
    if not settings.endpoint and not has_keys:
        return None
    return S3Access(
        endpoint_url=settings.endpoint or None,
        key_id=settings.access_key_id if has_keys else None,
        secret=settings.secret_access_key if has_keys else None,
    )
