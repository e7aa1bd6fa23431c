"""Flytekit's checkpoint on a chain of attempts: the same calls, and what they promise holds.

What the user gives is committed as an archive beside the destination before a copy of it appears at the destination
itself, where flytekit's own checkpoint would read it. What is restored is whole, verified and of the newest attempt
that has any; a failure to look is an error, and never an empty answer.
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
from chockstone.integrations.flyte.identity import told
from chockstone.integrations.flyte.merging import MergedPart, as_metadata, fetch, inherit, state_of
from chockstone.integrations.flyte.staging import StagingDirectory, move_into, staging

log = logging.getLogger(__name__)
_FORM: Final = "tree"  # files below the destination
_FORWARD_SECONDS: Final = 10.0  # it may be cut off: the next attempt then walks as far as this one did


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    sources: str | Sequence[str] = ()  # places of other runs, tried last
    stock_view: bool = True  # whether flytekit's own checkpoint finds what was saved
    accept_stock: bool = True  # whether files that flytekit's own checkpoint left are restored, unverified
    on_unreadable: OnUnreadable = "stop"
    forward: Mode = "reference"
    retention: Retention = Retention(keep_last=2)  # noqa: RUF009  # frozen
    poison_after: int | None = None
    deadline_seconds: float = 120.0
    fresh_start: bool = False  # from zero, whatever there is


class FlyteCheckpoint(SyncCheckpoint):  # type: ignore[misc]  # flytekit has no types
    """In the place of flytekit's ``SyncCheckpoint``. Thread-safe; keep it while the restored files are in use.

    One per attempt and process: a second one takes the place over from the first, whose saves then raise
    ``Superseded``. Of several ranks only rank 0 saves; the others restore what it finds, before its first save.
    """

    def __init__(
        self,
        checkpoint_dest: str | os.PathLike[str],
        checkpoint_src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        *,
        options: Options = Options(),  # noqa: B008  # frozen
    ) -> None:
        """Asks nothing of a store or of a disk: flytekit makes one for every task, used or not.

        ``checkpoint_src`` is the place of the previous attempt, or several, the most recent first; what can be derived
        from the paths comes between the first and the others.
        """
        given = [checkpoint_src] if isinstance(checkpoint_src, str | os.PathLike) else list(checkpoint_src or ())
        paths = [path for path in (os.fspath(each) for each in given) if path]
        # What flytekit's constructor sets, without its directory. Plugins read these names.
        self._checkpoint_dest: str = os.fspath(checkpoint_dest)
        self._checkpoint_src: str | None = paths[0] if paths else None
        self._prev_download_path: Path | None = None
        self._td = StagingDirectory()
        self._older = paths[1:]
        self._options = options
        self._lock = threading.RLock()
        self._chain_made: Chain | None = None
        self._state: dict[str, MergedPart] | None = None  # what this attempt has saved so far; None: to be read
        self._last: str | None = None  # the generation that was committed last
        self._translator = Translator()
        self._forward: Forward | None = None

    def __del__(self) -> None:
        directory = getattr(self, "_td", None)  # not there if the constructor failed
        if directory is not None:
            directory.cleanup()

    # -- what flytekit has

    def prev_exists(self) -> bool:
        """Whether there is something to restore. Raises where that cannot be told, and never says no instead."""
        with self._lock, self._translator.translated():
            if self._prev_download_path is not None:
                return True
            return self._chain().resolve().choice is not None

    def restore(self, path: Path | str | None = None) -> Path | None:
        """The directory with what the newest good checkpoint holds; the first call decides it for all.

        None where the platform named no previous attempt and there is none; FreshStart, which is flytekit's
        FlyteDataNotFoundException, where it named one and nothing was ever committed. When this raises, nothing of a
        checkpoint is in ``path``, unless the disk failed while complete files were being moved there.
        """
        with self._lock, self._translator.translated():
            if self._prev_download_path is None:
                self._prev_download_path = self._restore(path)
            return self._prev_download_path

    def save(
        self, cp: Path | str | os.PathLike[str] | io.IOBase | bytes, *, step: int | None = None, replace: bool = False
    ) -> None:
        """Save a file, a folder, or what a reader or bytes hold. On return it is durable; a kill leaves the last one.

        It is added to what this attempt saved before, or with ``replace`` put in its stead. ``step`` is for the audit.
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
        """Save these bytes under one fixed name; ``read`` of the next attempt gives them back."""
        self.save(io.BytesIO(b).getvalue(), step=step)  # so that what is not bytes is refused as flytekit does

    # -- what it has not

    @property
    def report(self) -> ResumeReport | None:
        """The audit of the decision, once there is one."""
        return self._chain_made.report if self._chain_made else None

    def configure(self, options: Options) -> None:
        """Change what it was made with, as long as it has not been used."""
        with self._lock:
            if self._chain_made is not None and options != self._options:
                raise CheckpointError("the checkpoint of this task is in use already; give its options in one place")
            self._options = options

    def acknowledge_fresh_start(self) -> None:
        """Go on from zero although something could not be read. Saves are refused after such an error until then."""
        with self._lock, self._translator.translated():
            self._chain().acknowledge_fresh_start()
            self._state, self._last = {}, None

    def close(self) -> None:
        """Let what runs in the background come to its end."""
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
            return target  # as flytekit does with an empty directory
        raise FreshStart(self._checkpoint_src, chain.report)

    def _load(self, found: FoundGeneration, target: Path) -> Path:
        with staging(target, Path(self._td.name)) as staged:
            if found.generation is None:
                fetch_flyte_native(found.place, _FORM, found.stock, staged)
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
        saved = write_files(
            chain.store, generation.name, files, step=step, metadata=metadata, created_at=datetime.now(UTC)
        )
        self._last, self._state = generation.name, None
        facts = (self._checkpoint_dest, generation.name, step, saved.size_bytes)
        log.info("checkpoint saved dest=%s generation=%s step=%s bytes=%d", *facts)
        if self._options.stock_view:
            self._refresh(chain, generation.name, replace=replace)

    def _refresh(self, chain: Chain, name: str, *, replace: bool) -> None:
        """Show it to flytekit's own checkpoint. It is saved already, so a failure here is only reported."""
        try:
            head = chain.head(chain.place, name)
            self._state = state_of(head, name)
            refresh_flyte_native(chain.place, name, head.layout.members, form=_FORM, replace=replace)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not look like a failed save
            log.warning("stock view not refreshed dest=%s generation=%s error=%s", self._checkpoint_dest, name, error)
            chain.note(f"{name} is not in the view of flytekit's own checkpoint: {error}")

    def _saved_so_far(self, chain: Chain) -> dict[str, MergedPart]:
        if self._state is None and self._last is not None:
            self._state = state_of(read_head_of(chain.place, self._last), self._last)
        elif self._state is None:
            self._state = self._saved_before(chain)
        return self._state

    def _saved_before(self, chain: Chain) -> dict[str, MergedPart]:
        """What an earlier process of this attempt had saved: to that, too, a save adds."""
        attempt = chain.claim().attempt
        voids = attempt.voids()
        for generation in attempt.generations:
            with suppress(CheckpointMissing, DamagedArchive, ForeignArchive):  # nor would it have been restored
                head = read_head_of(attempt.place, generation.name)
                is_ours = identity_of(head.manifest) == chain.identity
                if generation not in voids and head.manifest.kind == FILES and is_ours:
                    return state_of(head, generation.name)
        return {}

    # -- the chain

    def _chain(self) -> Chain:
        if self._chain_made is None:
            options, dest = self._options, self._checkpoint_dest
            facts = told(dest, self._checkpoint_src, os.environ)
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
                    legacy="accept" if options.accept_stock else "reject",
                    stock=_FORM,
                    poison_after=options.poison_after,
                    deadline_seconds=options.deadline_seconds,
                    fresh_start=options.fresh_start,
                ),
                notes=facts.notes,
                is_looking_only=not self._is_leading(),
            )
            self._chain_made.on_commit = RetentionRunner(self._chain_made, options.retention).tidy
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
    """Endpoint and keys as flytekit has them (FLYTE_AWS_ENDPOINT and others); else those of the AWS environment."""
    told_s3 = FlyteContextManager.current_context().file_access.data_config.s3
    has_keys = bool(told_s3.access_key_id and told_s3.secret_access_key)
    if not told_s3.endpoint and not has_keys:
        return None
    return S3Access(
        endpoint_url=told_s3.endpoint or None,
        key_id=told_s3.access_key_id if has_keys else None,
        secret=told_s3.secret_access_key if has_keys else None,
    )
