"""Resume: restores the newest good checkpoint of any earlier attempt of a training, and saves new ones.

    with Resume.from_environment("s3://bucket/run-7") as resume:
        resume.restore(state)                          # None, and nothing touched, on a first start
        for step in range((resume.step or 0) + 1, 1001):
            ...
            if step % 100 == 0:
                resume.save(state, step=step)          # in the background

Each start is an attempt with a place of its own below the root, so a process that should have ended cannot damage
checkpoints of a later one. Sends no request before the first call that needs one.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, Final, Self, Unpack, get_args

from chockstone.checkpoints.checkpointer import Checkpointer
from chockstone.checkpoints.errors import (
    CheckpointError,
    DamagedArchive,
    InvalidName,
    ResumeBlocked,
    ResumeError,
    SaveFailed,
    Superseded,
)
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.restoring.receipt import RestoreReceipt
from chockstone.checkpoints.restoring.restore import restore_state
from chockstone.checkpoints.restoring.verdicts import Verdict, judge
from chockstone.checkpoints.restoring.walk_back import OnUnreadable
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.generations import CHAIN, FoundGeneration, find_generation
from chockstone.checkpoints.resume.attempts.places import RETRY_POLICY, AttemptPlaces, normalise
from chockstone.checkpoints.resume.attempts.roots import (
    MAX_ATTEMPT,
    as_list,
    attempt_place,
    attempts_in,
    begun_before,
    earlier_attempts,
    named_places,
    number_attempt,
)
from chockstone.checkpoints.resume.forward import Forward, Mode
from chockstone.checkpoints.resume.platforms import JobIdentity
from chockstone.checkpoints.resume.resume_ranks import ResumeRanks
from chockstone.checkpoints.resume.retention_runner import RetentionRunner
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.resume.walk.report import ResumeReport
from chockstone.checkpoints.resume.walk.rules import ResumeRules
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.saving.handle import SaveHandle
from chockstone.checkpoints.saving.request import SaveOptions
from chockstone.checkpoints.stores.bucket import RetryPolicy

log = logging.getLogger(__name__)
_KEEP: Final = Retention(keep_last=2)


class Resume:
    """One attempt at a training. Call its methods from one thread; saves run in background threads."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        attempt: int | None = None,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        identity: str | None = None,
        retention: Retention = _KEEP,
        forward: Mode = "reference",
        on_unreadable: OnUnreadable = "stop",
        poison_after: int | None = None,
        fresh_start: bool = False,
        retry_policy: RetryPolicy = RETRY_POLICY,
        deadline_seconds: float = 120.0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """``attempt``: the number of this attempt; None takes the one after the newest attempt below the root.

        ``sources``: roots or attempts of other runs, tried in this order after everything of this chain. ``identity``
        distinguishes the checkpoints of this chain from others and must be the same in every attempt; by default the
        last part of the root. ``fresh_start``: start from zero, whatever exists.

        ``on_unreadable``: "stop" raises if the newest checkpoint cannot be read now, "older" restores an older verified
        one. ``poison_after``: skip a checkpoint that the loader failed on in so many attempts; None: never.
        ``deadline_seconds``: maximum time to decide, without the transfer.
        """
        _refuse_attempt(attempt)
        _refuse_word("forward", forward, get_args(Mode))
        _refuse_word("on_unreadable", on_unreadable, get_args(OnUnreadable))
        if poison_after is not None and poison_after < 1:
            raise ValueError(f"poison_after={poison_after} would pass every checkpoint; give 1 or more, or None")
        if not deadline_seconds > 0:
            raise ValueError(f"deadline_seconds={deadline_seconds} leaves no time to decide")
        if not isinstance(retention, Retention):
            raise TypeError(f"retention={retention!r} is no Retention; write Retention(keep_last=3)")
        if identity == "":
            raise ValueError("identity is empty; leave it out for the last part of the root")
        self.root = normalise(root)
        self.identity = {CHAIN: PurePosixPath(self.root).name if identity is None else identity}
        self._wanted = attempt
        self._sources = as_list(sources)
        self._retention = retention
        self._forward_mode: Mode = forward
        self._rules = ResumeRules(
            on_unreadable=on_unreadable,
            poison_after=poison_after,
            deadline_seconds=deadline_seconds,
            fresh_start=fresh_start,
        )
        self._places = AttemptPlaces(retry_policy=retry_policy)
        self._ranks = ResumeRanks.found(rank, world_size)
        self._notes: list[str] = []
        self._chain_: Chain | None = None
        self._checkpointer: Checkpointer | None = None
        self._forward: Forward | None = None
        self._step: int | None = None
        self._touched: Exception | None = None  # the error of a restore that had changed the target already
        self._has_begun = fresh_start  # whether it is decided what this attempt resumes from
        self._block: ResumeBlocked | None = None  # the root itself could not be read

    @classmethod
    def from_environment(
        cls, root: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None, **options: Any
    ) -> Self:
        """Take attempt and rank from Slurm, JobSet, SkyPilot or torchelastic; ``options`` are the constructor's."""
        job = JobIdentity.read(os.environ if environ is None else environ)
        resume = cls(root, **{"attempt": job.attempt, "rank": job.rank, "world_size": job.world_size, **options})
        resume._notes.append(job.why)
        return resume

    @property
    def step(self) -> int | None:
        """The restored step; None before ``restore``, and on a fresh start."""
        return self._step

    @property
    def leads(self) -> bool:
        """Whether this is the rank that saves."""
        return self._ranks.leads

    @property
    def attempt(self) -> int | None:
        """The number of this attempt. Lists the root if no number was given."""
        return self._chain().attempt

    @property
    def place(self) -> str:
        """Where this attempt saves."""
        return self._chain().place.uri

    @property
    def report(self) -> ResumeReport | None:
        """The report of the decision; None before it, and on all ranks except rank 0."""
        return self._chain_.report if self._chain_ else None

    def resolve(self) -> ResumeReport:
        """Choose the checkpoint to resume from, reading no tensors. Raises ResumeBlocked or ResumeExhausted."""
        return self._chain().resolve()

    def restore(self, into: MutableMapping[str, Any], *, strict: bool = True) -> RestoreReceipt | None:
        """Restore the newest good state into ``into``, in place. Return None if nothing was ever saved.

        With several ranks, all restore the same checkpoint, or all raise.
        """
        if self._ranks.world_size == 1:
            return self._restore(into, strict=strict)
        receipt: RestoreReceipt | None = None

        def decide() -> str:
            nonlocal receipt
            receipt = self._restore(into, strict=strict)
            found = self._chain().found
            chosen = [found.place.uri, found.name, found.seal] if receipt and found else None
            return json.dumps(chosen)

        chosen = json.loads(self._ranks.decide(decide))
        error: CheckpointError | None = None
        if chosen is not None and not self._ranks.leads:
            try:
                receipt = self._follow(chosen, into, strict=strict)
            except CheckpointError as trouble:
                error = trouble
        self._ranks.all_agree(error is None, str(error or ""))
        return receipt

    def save(self, state: Mapping[str, object], **options: Unpack[SaveOptions]) -> SaveHandle:
        """As ``Checkpointer.save``: returns when ``state`` may be changed again, and writes in the background.

        Raises the error of a refused restore again. Raises ResumeError if a checkpoint exists and was not restored: the
        save would rank before it. After a later attempt has started, the handle and the next call raise Superseded.
        Only rank 0 saves.
        """
        if not self._ranks.leads:
            raise ResumeError(f"rank {self._ranks.rank} must not save: rank 0 saves for all ranks")
        if options.get("name") is not None or options.get("overwrite"):
            raise ResumeError("generations are numbered and never overwritten; leave out name and overwrite")
        chain = self._chain()
        metadata = dict(options.get("metadata", {}))
        if CHAIN in metadata:
            raise ResumeError(f"the metadata {CHAIN!r} is the chain's own; choose another name for yours")
        if not self._has_begun:
            self._refuse_unrestored(chain)
        name = chain.begin().name
        options["name"], options["metadata"] = name, {**metadata, **chain.metadata}
        if self._checkpointer is None:
            store = chain.store_with(RetentionRunner(chain, self._retention).tidy)
            self._checkpointer = Checkpointer(store, ranks="off")  # rank 0 saves for all
        with _plainly_superseded():
            return self._checkpointer.save(state, **options)

    def acknowledge_fresh_start(self) -> None:
        """After ResumeBlocked or ResumeExhausted: start from zero, and rank saves before what could not be read."""
        self._block = None
        self._chain().acknowledge_fresh_start()
        self._has_begun = True

    def close(self) -> None:
        """Wait for running saves and a forward."""
        try:
            if self._forward is not None:
                self._forward.wait()
        finally:
            if self._checkpointer is not None:
                self._checkpointer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self._checkpointer is not None:
            with _plainly_superseded():
                self._checkpointer.__exit__(None, None, None)

    def _chain(self) -> Chain:
        if self._block is not None:
            raise self._block
        if self._chain_ is None:
            try:
                self._chain_ = self._make_chain()
            except (InvalidName, ResumeError):
                raise
            except Exception as error:
                self._block = self._blocked(error)
                raise self._block from error
        return self._chain_

    def _blocked(self, error: Exception) -> ResumeBlocked:
        return ResumeBlocked(
            f"cannot tell which attempts there are below {self.root}: {error}. Mend that and try again.",
            verdict=judge(error),
        )

    def _make_chain(self) -> Chain:
        since = self._places.cost.spent
        existing = attempts_in(self._places, self.root, is_only_chain=True)
        numbered = number_attempt(existing, self._wanted)
        others = named_places(self._places, self._sources, are_only_chains=True)
        return Chain(
            self._places,
            attempt_place(self.root, numbered.attempt),
            identity=self.identity,
            attempt=numbered.attempt,
            candidates=[*earlier_attempts(self.root, numbered.earlier), *others],
            rules=self._rules,
            notes=[*self._notes, *filter(None, [numbered.note])],
            started_since=lambda: self._started_since(numbered.attempt),
            since=since,
        )

    def _started_since(self, attempt: int) -> list[Candidate]:
        try:
            existing = attempts_in(self._places, self.root)
        except Exception as error:
            raise self._blocked(error) from error
        return begun_before(self.root, existing, attempt)

    def _restore(self, into: MutableMapping[str, Any], *, strict: bool) -> RestoreReceipt | None:
        chain = self._chain()
        self._touched = None
        try:
            receipt = chain.walk(lambda found: self._load(found, into, strict=strict))
        except ResumeError as error:
            if self._touched is not None:
                error.add_note(f"the target is half restored; do not use it: {self._touched}")
            raise
        self._has_begun = True
        if receipt is None:
            for doubt in _doubts(chain.report):
                log.warning("resume %s", doubt)
                chain.note(doubt)
            return None
        self._step = receipt.step
        if self._forward is None:
            self._forward = Forward.begin(chain, self._forward_mode)
        return receipt

    def _refuse_unrestored(self, chain: Chain) -> None:
        chosen = chain.resolve().choice
        if chosen is not None:
            step = "" if chosen.step is None else f", step {chosen.step},"
            raise ResumeError(
                f"there is a checkpoint{step} at {chosen.uri} that was not restored, and this save would rank before "
                "it: call restore() first, or give fresh_start=True to begin at zero"
            )
        self._has_begun = True

    def _follow(self, chosen: list[str], into: MutableMapping[str, Any], *, strict: bool) -> RestoreReceipt:
        uri, name, seal = chosen
        generation = Generation.parse(name)
        assert generation is not None, "rank 0 names generations"
        found = find_generation(self._places, self._places.open(uri), generation)
        if found.seal != seal:
            raise DamagedArchive(f"{name} of {uri} is not the one that rank 0 restored")
        receipt = self._load(found, into, strict=strict)
        self._step = receipt.step
        return receipt

    def _load(self, found: FoundGeneration, into: MutableMapping[str, Any], *, strict: bool) -> RestoreReceipt:
        started, received = time.perf_counter(), 0

        def on_bytes(size: int) -> None:
            nonlocal received
            received += size

        try:
            with Archive(found.open(), verify="full") as archive:
                restored = restore_state(archive, into, strict=strict, on_bytes=on_bytes)
                return RestoreReceipt.of(
                    archive, restored, name=found.name, url=found.place.store.url, seconds=time.perf_counter() - started
                )
        except Exception as error:
            is_touched = received or (isinstance(error, DamagedArchive) and error.touched)
            self._touched = error if is_touched else self._touched
            raise


def _refuse_attempt(attempt: int | None) -> None:
    """Refuse a number outside of the range of places: later attempts would not find it."""
    if attempt is not None and not (type(attempt) is int and 0 <= attempt <= MAX_ATTEMPT):
        raise ValueError(f"attempt={attempt!r} is not a number from 0 to {MAX_ATTEMPT}, nor None for the next one")


def _refuse_word(name: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ValueError(f"{name}={word!r} is none of {', '.join(map(repr, known))}")


def _doubts(report: ResumeReport | None) -> Iterator[str]:
    """Return warnings for a fresh start that the user may not have wanted."""
    looked = report.looked if report is not None else ()
    foreign = [each for each in looked if each.verdict is Verdict.FOREIGN and each.origin != Origin.USER]
    if foreign:
        yield (
            f"begins at zero beside the checkpoints of another run: {foreign[0].uri}, {foreign[0].reason}. If the root "
            "was moved or renamed, give Resume that name as identity=, or the old root as a source"
        )
    named = [each for each in looked if each.origin == Origin.USER]
    if named and all(each.verdict in (Verdict.ABSENT, Verdict.EMPTY) for each in named):
        yield f"begins at zero: no source has ever held a checkpoint ({', '.join(each.uri for each in named[:3])})"


@contextmanager
def _plainly_superseded() -> Iterator[None]:
    """Raise Superseded itself, not the SaveFailed of an earlier save that it caused."""
    try:
        yield
    except SaveFailed as error:
        if isinstance(error.__cause__, Superseded):
            raise error.__cause__ from None
        raise
